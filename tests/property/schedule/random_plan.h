// Plans of random small GPTs; the seed and the draw are printed when a test fails.
#pragma once
#include <fmt/core.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "engine/schedule/compile.h"
#include "engine/schedule/make_program.h"
#include "engine/schedule/pipeline_order.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme::testing {

class RandomPlans {
 public:
  explicit RandomPlans(unsigned seed) : generator_(seed) {}

  int64_t Draw(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator_); }
  template <typename T>
  T OneOf(const std::vector<T>& values) {
    return values[static_cast<size_t>(Draw(0, static_cast<int64_t>(values.size()) - 1))];
  }

  SmallPlan Next() {
    SmallPlan small;
    small.layers = Draw(1, 6);
    small.heads = Draw(1, 3);
    small.hidden = small.heads * OneOf<int64_t>({2, 5, 8});
    small.vocab = Draw(3, 300);
    small.positions = Draw(4, 20);
    small.sequence = Draw(1, small.positions);
    small.micro = Draw(1, 3);
    small.micro_batches = Draw(1, 4);
    small.ranks = Draw(1, 5);
    small.zero_stage = static_cast<int>(Draw(0, 3));
    small.tied = Draw(0, 1) == 1;
    small.bf16 = Draw(0, 1) == 1;
    small.recompute = Draw(0, 1) == 1 ? Recompute::kFull : Recompute::kNone;
    small.bucket_elements = OneOf<int64_t>({1, 1000, 5000, 20'000, 500'000'000});
    small.optimizer = OneOf<OptimizerType>({OptimizerType::kAdamW, OptimizerType::kSgd, OptimizerType::kLamb});
    small.offload_optimizer = OneOf<double>({0, 0, 0.3, 1});
    if (small.optimizer == OptimizerType::kLamb) small.offload_optimizer = 0;
    small.offload_param = Draw(0, 2) == 0;
    return small;
  }

  // With a pipeline of 1 to 4 ranks.
  SmallPlan NextPipeline() {
    SmallPlan small = Next();
    small.pp = Draw(1, std::min<int64_t>(4, small.layers + 2));
    small.ranks = small.pp * Draw(1, 3);
    small.schedule = OneOf<PipelineSchedule>(
        {PipelineSchedule::kGPipe, PipelineSchedule::kOneForwardOneBackward, PipelineSchedule::kZeroBubble});
    small.partition = OneOf<std::string>({"uniform", "parameters", "time", "type:block"});
    small.micro_batches = Draw(1, 9);
    const int64_t most = (small.layers + 2) / small.pp;
    if (small.schedule == PipelineSchedule::kOneForwardOneBackward && small.pp > 1) {
      small.virtual_stages = Draw(1, std::min<int64_t>(3, most));
    }
    if (small.virtual_stages > 1) small.micro_batches = small.pp * Draw(1, 3);
    return small;
  }

 private:
  std::mt19937 generator_;
};

inline std::string Describe(const SmallPlan& s) {
  return fmt::format(
      "layers {} hidden {} heads {} vocab {} positions {} sequence {} micro {} micro-batches {} ranks {} stage {} tied "
      "{} bf16 {} "
      "recompute {} bucket {} pp {} virtual stages {} {} {} offload optimizer {} param {}",
      s.layers, s.hidden, s.heads, s.vocab, s.positions, s.sequence, s.micro, s.micro_batches, s.ranks, s.zero_stage,
      s.tied, s.bf16, s.recompute == Recompute::kFull, s.bucket_elements, s.pp, s.virtual_stages, Name(s.schedule),
      s.partition, s.offload_optimizer, s.offload_param);
}

inline std::vector<CompiledProgram> CompileAll(const Plan& plan, ProgramKind kind, int max_unjoined_frees = 2) {
  CompileOptions options = OptionsOf(plan);
  options.max_unjoined_frees = max_unjoined_frees;
  std::vector<CompiledProgram> ranks;
  for (int rank = 0; rank < plan.topology.world_size(); ++rank)
    ranks.push_back(Compile(MakeProgram(plan, kind, rank), options));
  return ranks;
}

// TRIREME_TEST_SEED repeats a run.
inline unsigned Seed() {
  const char* text = std::getenv("TRIREME_TEST_SEED");
  return text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : std::random_device{}();
}

}  // namespace trireme::testing
