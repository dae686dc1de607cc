#include "engine/advise/layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/schedule/verify.h"

namespace trireme {
namespace {

std::vector<int64_t> DivisorsOf(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= number; ++d) {
    if (number % d == 0) divisors.push_back(d);
  }
  return divisors;
}

bool CanSplit(const ModelSpec& model, int64_t tp) {
  return model.num_attention_heads % tp == 0 && model.KeyValueHeads() % tp == 0 && model.intermediate_size % tp == 0;
}

// Numbers of stages of one rank that make interleaving worth a look: doubling, up to a layer each.
std::vector<int64_t> VirtualStages(const Job& job, int64_t pp, int64_t micro_batches, PipelineSchedule schedule) {
  std::vector<int64_t> counts = {1};
  if (pp == 1 || micro_batches % pp != 0 || schedule != PipelineSchedule::kOneForwardOneBackward) return counts;
  for (int64_t v = 2; v * pp <= job.model.num_layers; v *= 2) counts.push_back(v);
  const int64_t own = job.config.pipeline_parallel.virtual_stages;
  if (own * pp <= job.model.num_layers + 2 && std::ranges::find(counts, own) == counts.end()) counts.push_back(own);
  return counts;
}

// The stages worth a look. Stage 0 moves and holds more than stage 1 does, but it may be what the user has.
std::vector<int> ZeroStages(const Job& job, int64_t dp) {
  const int own = job.config.zero_optimization.zero_stage;
  if (dp == 1 && !job.inputs.own_units.empty()) return {own};
  if (dp == 1) return {std::max(own, 1)};  // one rank shards nothing; its states can be offloaded from stage 1 on
  std::vector<int> stages = {1, 2, 3};
  if (own == 0) stages.insert(stages.begin(), 0);
  return stages;
}

}  // namespace

Layout LayoutOf(const Config& config) {
  const ZeroConfig& zero = config.zero_optimization;
  return {config.tensor_parallel.tp_size,
          config.pipeline_parallel.pp_size,
          config.pipeline_parallel.virtual_stages,
          config.pipeline_parallel.schedule,
          config.tensor_parallel.sequence_parallel,
          zero.zero_stage,
          config.batch.train_micro_batch_size_per_gpu,
          zero.offload_optimizer,
          zero.offload_param,
          zero.stage3_prefetch_bucket_size,
          config.recompute};
}

Config WithLayout(const Config& config, const Layout& layout) {
  Config other = config;
  other.tensor_parallel = {layout.tp, layout.sequence_parallel};
  PipelineParallelConfig& pipeline = other.pipeline_parallel;
  const bool as_many = layout.pp * layout.virtual_stages == pipeline.pp_size * pipeline.virtual_stages;
  if (!as_many && pipeline.partition.starts_with("layers:")) pipeline.partition = PipelineParallelConfig{}.partition;
  pipeline.pp_size = layout.pp;
  pipeline.virtual_stages = layout.virtual_stages;
  pipeline.schedule = layout.schedule;
  other.dp_size = config.world_size / (layout.tp * layout.pp);
  const int64_t batch = config.batch.train_batch_size;
  other.batch = {batch, layout.micro_batch, batch / (layout.micro_batch * other.dp_size)};
  ZeroConfig& zero = other.zero_optimization;
  zero.zero_stage = layout.zero_stage;
  zero.offload_optimizer = layout.offload_optimizer;
  zero.offload_param = layout.offload_param;
  zero.stage3_prefetch_bucket_size = layout.prefetch_elements;
  other.recompute = layout.recompute;
  return other;
}

std::string DescribeRecompute(const Plan& plan) {
  int64_t cheap = 0, full = 0, layers = 0;
  for (const UnitLayout& unit : plan.units) {
    layers += unit.spec.kind == UnitKind::kBlock;
    cheap += unit.recompute == Recompute::kCheap;
    full += unit.recompute == Recompute::kFull && unit.spec.kind == UnitKind::kBlock;
  }
  if (cheap + full == 0) return "nothing";
  if (cheap == layers) return "cheap";
  if (full == layers) return "full";
  std::string text;
  if (full > 0) text = fmt::format("full in {}", full);
  if (cheap > 0) text += fmt::format("{}cheap in {}", text.empty() ? "" : ", ", cheap);
  return text + fmt::format(" of {} layers", layers);
}

std::string Describe(const Layout& layout, const Plan& plan) {
  const BatchPlan& batch = plan.batch;
  std::string text =
      fmt::format("tp {} x pp {} x dp {}, ZeRO {}, micro-batch {} x {}", layout.tp, layout.pp, plan.topology.dp_size,
                  layout.zero_stage, batch.micro_batch_size, batch.num_micro_batches);
  if (layout.virtual_stages > 1) text += fmt::format(", {} virtual stages", layout.virtual_stages);
  if (layout.schedule == PipelineSchedule::kZeroBubble && layout.pp > 1) text += ", zero-bubble";
  if (layout.schedule == PipelineSchedule::kGPipe && layout.pp > 1) text += ", gpipe";
  if (plan.sequence_parallel) text += ", sequence parallel";
  const std::string made_again = DescribeRecompute(plan);
  if (made_again != "nothing") text += fmt::format(", recompute {}", made_again);
  if (layout.offload_ratio() > 0 && layout.zero_stage > 0) {
    text += fmt::format(", offload {:.3g} of the optimizer", layout.offload_ratio());
  }
  if (plan.weights_on_host) text += ", offload weights";
  return text;
}

std::optional<Plan> PlanShapeOf(const Job& job, const Config& config, std::string* why) {
  try {
    ModelSpec model = job.model;
    const int64_t tp = config.tensor_parallel.tp_size;
    if (model.padded_vocab_size == 0 || tp != job.config.tensor_parallel.tp_size) PadVocabulary(model, tp);
    return MakePlan(config, model, job.inputs);
  } catch (const Error& error) {
    if (why != nullptr) *why = error.message();
    return std::nullopt;
  }
}

std::optional<Plan> PlanOf(const Job& job, const Config& config, std::string* why) {
  std::optional<Plan> plan = PlanShapeOf(job, config, why);
  if (plan) AccountMemory(*plan);
  return plan;
}

std::vector<Layout> EnumerateLayouts(const Job& job, int64_t ranks_per_node, int64_t* across_nodes) {
  std::vector<Layout> layouts;
  const Config& config = job.config;
  const int64_t world = job.inputs.world_size, batch = config.batch.train_batch_size;
  const bool dynamic = config.data_efficiency.dynamic_batching.enabled;
  Layout layout = LayoutOf(config);
  if (layout.schedule == PipelineSchedule::kGPipe) layout.schedule = PipelineSchedule::kOneForwardOneBackward;
  for (const int64_t tp : DivisorsOf(world)) {
    if (!CanSplit(job.model, tp) || (tp > 1 && !job.inputs.own_units.empty())) continue;
    const bool spans = world > ranks_per_node && ranks_per_node % tp != 0;
    for (const int64_t pp : DivisorsOf(world / tp)) {
      const int64_t dp = world / tp / pp;
      if (pp > job.model.num_layers || batch % dp != 0) continue;
      if (spans) {
        if (across_nodes != nullptr) ++*across_nodes;
        continue;
      }
      for (const int64_t micro : dynamic ? std::vector<int64_t>{1} : DivisorsOf(batch / dp)) {
        for (const int64_t v : VirtualStages(job, pp, batch / dp / micro, layout.schedule)) {
          for (const int zero : ZeroStages(job, dp)) {
            layout.tp = tp;
            layout.pp = pp;
            layout.virtual_stages = v;
            layout.zero_stage = zero;
            layout.micro_batch = micro;
            layout.sequence_parallel = tp > 1 && micro * job.inputs.sequence_length % tp == 0;
            layouts.push_back(layout);
          }
        }
      }
    }
  }
  return layouts;
}

}  // namespace trireme
