// The plan's traffic is what the ranks' collectives carry: bytes that a rank sends in ring algorithms, by kind.
#include <gtest/gtest.h>

#include <map>

#include "engine/schedule/verify.h"
#include "tests/ranks/trainer/tiny_run.h"

namespace trireme::test {
namespace {

struct Layout {
  int tp, pp, dp, stage;
  bool sequence_parallel = false;
  Recompute recompute = Recompute::kNone;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  bool neox = false;
  RecomputeConfig activations = {};
};

class Traffic : public ::testing::TestWithParam<Layout> {};

TinyRun RunOf(const Layout& layout) {
  TinyRun run{.world = layout.tp * layout.pp * layout.dp, .zero_stage = layout.stage, .accumulation = 2};
  run.global_batch = 24;
  run.steps = 1;
  run.heads = 6;
  run.tp = layout.tp;
  run.pp = layout.pp;
  run.sequence_parallel = layout.sequence_parallel;
  run.recompute = layout.recompute;
  run.activations = layout.activations;
  run.schedule = layout.schedule;
  if (layout.neox) {
    ModelSpec model = SetupOf(run).model;
    model.family = Family::kGptNeoX;
    model.activation = Activation::kGelu;
    model.parallel_residual = true;
    model.tie_word_embeddings = false;
    run.model = model;
  }
  return run;
}

int64_t SentBytes(const OperationCount& operation, int64_t size) {
  switch (operation.op) {
    case OpKind::kAllReduce:
      return operation.bytes / size * (size - 1) * 2;
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
      return operation.bytes * (size - 1);
    case OpKind::kSend:
      return operation.bytes;
    default:
      return 0;
  }
}

TEST_P(Traffic, IsWhatTheCollectivesCarry) {
  const Layout& layout = GetParam();
  const TinyRun run = RunOf(layout);
  const TrainerSetup setup = SetupOf(run);
  PlanInputs inputs;
  inputs.world_size = run.world;
  inputs.sequence_length = setup.sequence_length;
  inputs.fp64 = true;
  inputs.recompute = run.recompute;
  Plan plan = MakePlan(setup.config, setup.model, inputs);
  AccountMemory(plan);

  const auto world = MakeInProcessWorld(run.world);
  ASSERT_EQ(Train(run, world).failed, "");
  std::map<int, int64_t> tp, dp;  // by rank
  for (const OperationCount& operation : OperationsOfTraining(*world)) {
    if (operation.group.starts_with("tp")) tp[operation.rank] += SentBytes(operation, layout.tp);
    if (operation.group.starts_with("dp")) dp[operation.rank] += SentBytes(operation, layout.dp);
  }
  int64_t most_tp = 0;
  for (const auto& [rank, bytes] : tp) most_tp = std::max(most_tp, bytes);
  EXPECT_EQ(plan.traffic.tensor_parallel, most_tp);
  EXPECT_EQ(plan.traffic.tensor_parallel > 0, layout.tp > 1);
  if (layout.pp == 1) {
    EXPECT_EQ(plan.traffic.gather + plan.traffic.reduce, dp[0]);
  }
}

// Two layers at a time of three, kept inputs in parts.
Layout Pairs(int dp, int stage, bool sequence_parallel) {
  Layout layout{2, 1, dp, stage, sequence_parallel};
  layout.activations = {.runs = {{Recompute::kFull, 0}}, .layers_per_checkpoint = 2, .partition_activations = true};
  return layout;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Traffic,
    ::testing::Values(Layout{2, 1, 1, 0}, Layout{2, 1, 1, 0, true}, Layout{3, 1, 1, 0, false},
                      Layout{2, 1, 2, 1, false}, Layout{2, 1, 2, 2, true}, Layout{2, 1, 3, 3, false},
                      Layout{2, 2, 1, 0, true}, Layout{2, 1, 1, 0, false, Recompute::kFull},
                      Layout{2, 1, 1, 0, true, Recompute::kFull},
                      Layout{2, 1, 1, 0, true, Recompute::kFull, PipelineSchedule::kOneForwardOneBackward, true},
                      Layout{2, 1, 1, 0, false, Recompute::kFull, PipelineSchedule::kOneForwardOneBackward, true},
                      Layout{2, 1, 1, 0, true, Recompute::kCheap}, Pairs(1, 0, false), Pairs(2, 3, false),
                      Pairs(1, 0, true), Layout{2, 2, 1, 0, true, Recompute::kNone, PipelineSchedule::kZeroBubble}));

}  // namespace
}  // namespace trireme::test
