// A layout of a job: what a config says about where its parts run, apart from what it computes. Two layouts of one job
// give the same losses.
//   Layout layout = LayoutOf(config);
//   layout.zero_stage = 3;
//   Config other = WithLayout(config, layout);
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "parsers/config.h"
#include "parsers/model_spec.h"

namespace trireme {

struct Layout {
  int64_t tp = 1, pp = 1, virtual_stages = 1;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  std::string partition = PipelineParallelConfig{}.partition;  // which units make up a stage
  bool sequence_parallel = false;
  int zero_stage = 0;
  int64_t micro_batch = 1;  // sequences
  OffloadOptimizerConfig offload_optimizer;
  OffloadParamConfig offload_param;
  int64_t prefetch_elements = 0;  // stage3_prefetch_bucket_size
  RecomputeConfig recompute;

  double offload_ratio() const {
    return offload_optimizer.device == OffloadDevice::kNone ? 0 : offload_optimizer.ratio;
  }
};

Layout LayoutOf(const Config& config);

// `config` in another layout, for the same ranks and the same train_batch_size, which layout.tp, pp and micro_batch
// must divide. A partition that lists the layers of each stage is left out where the number of stages is another.
Config WithLayout(const Config& config, const Layout& layout);

// "tp 2 x pp 4 x dp 2, ZeRO 1, micro-batch 1 x 32"; with what is recomputed and offloaded where anything is.
std::string Describe(const Layout& layout, const Plan& plan);
std::string DescribeRecompute(const Plan& plan);  // "cheap in 8 layers, full in 4 of 40"; "nothing"

// A job: everything that stays as it is while its layout changes. `model` is padded for config's tp_size, or not at all
// (padded_vocab_size 0).
struct Job {
  Config config;
  ModelSpec model;
  PlanInputs inputs;
};

// The plan of another config of the job, with its memory (AccountMemory); nullopt where that layout cannot be: the
// reason, MakePlan's message, in *why.
std::optional<Plan> PlanOf(const Job& job, const Config& config, std::string* why = nullptr);
// The same without its memory.
std::optional<Plan> PlanShapeOf(const Job& job, const Config& config, std::string* why = nullptr);

// Layouts that could be: tp divides heads and lies inside a node of `ranks_per_node`, tp x pp x dp = world,
// micro-batches divide the batch. Recomputation, offloading and prefetch depth are the job's own: what fits them is in
// fill.h. `across_nodes` counts what was left out because a tensor-parallel group would span nodes.
std::vector<Layout> EnumerateLayouts(const Job& job, int64_t ranks_per_node, int64_t* across_nodes = nullptr);

}  // namespace trireme
