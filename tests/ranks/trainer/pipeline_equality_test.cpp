// Every pipeline trains like one rank, in double precision, with every ZeRO stage.
#include <gtest/gtest.h>

#include "tests/ranks/trainer/trains_alike.h"

namespace trireme::test {
namespace {

constexpr PipelineSchedule kGPipe = PipelineSchedule::kGPipe, k1F1B = PipelineSchedule::kOneForwardOneBackward,
                           kZeroBubble = PipelineSchedule::kZeroBubble;

// 4 layers, so that 6 units make up to 6 stages; 24 samples.
TinyRun Base(bool sgd) {
  TinyRun run{.accumulation = 4, .global_batch = 24, .sgd = sgd};
  run.layers = 4;
  return run;
}

const Reference& OneRank(bool sgd) {
  static const Reference with_sgd = ReferenceOf(Base(true)), with_adamw = ReferenceOf(Base(false));
  return sgd ? with_sgd : with_adamw;
}

struct Layout {
  int pp, virtual_stages, dp, stage;
  PipelineSchedule schedule;
  bool sgd;
  Recompute recompute;
};

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts;
  const Recompute none = Recompute::kNone, full = Recompute::kFull;
  for (const int stage : {0, 1, 2, 3}) {
    for (const PipelineSchedule schedule : {kGPipe, k1F1B, kZeroBubble}) {
      layouts.push_back({2, 1, 2, stage, schedule, stage % 2 == 0, none});
      layouts.push_back({3, 1, 1 + stage % 2, stage, schedule, true, schedule == k1F1B ? full : none});
    }
    layouts.push_back({4, 1, 1, stage, stage % 2 == 0 ? k1F1B : kZeroBubble, false, full});
    layouts.push_back({2, 2, 2, stage, k1F1B, stage % 2 == 1, none});
    layouts.push_back({2, 3, 1, stage, k1F1B, false, full});
  }
  return layouts;
}

class PipelineEquality : public ::testing::TestWithParam<Layout> {};

TEST_P(PipelineEquality, EqualsOneRankInFp64) {
  const Layout layout = GetParam();
  const Reference& one_rank = OneRank(layout.sgd);
  TinyRun run = one_rank.run;
  run.world = layout.pp * layout.dp;
  run.zero_stage = layout.stage;
  run.pp = layout.pp;
  run.virtual_stages = layout.virtual_stages;
  run.schedule = layout.schedule;
  run.recompute = layout.recompute;
  ExpectTrainsAlike(Train(run), one_rank.curve);
}

INSTANTIATE_TEST_SUITE_P(Layouts, PipelineEquality, ::testing::ValuesIn(Layouts()), [](const auto& layout) {
  const Layout& l = layout.param;
  return "Pp" + std::to_string(l.pp) + "V" + std::to_string(l.virtual_stages) + "Dp" + std::to_string(l.dp) + "Zero" +
         std::to_string(l.stage) +
         (l.schedule == kGPipe  ? "GPipe"
          : l.schedule == k1F1B ? "OneFOneB"
                                : "ZeroBubble") +
         (l.sgd ? "Sgd" : "AdamW") + (l.recompute == Recompute::kFull ? "Recompute" : "");
});

TEST(PipelineEquality, UntiedHeadAndUnevenMicroBatches) {
  TinyRun one = Base(true);
  one.tied = false;
  const Curve want = Train(one);
  for (const PipelineSchedule schedule : {kGPipe, k1F1B, kZeroBubble}) {
    TinyRun run = one;
    run.world = 3;
    run.pp = 3;
    run.accumulation = 1 + 7 * (schedule == k1F1B ? 1 : 0);
    run.schedule = schedule;
    ExpectTrainsAlike(Train(run), want);
  }
}

TEST(PipelineEquality, EvaluationChangesNothing) {
  TinyRun run = Base(true);
  run.world = 4;
  run.pp = 2;
  run.zero_stage = 3;
  TinyRun evaluating = run;
  evaluating.evaluates = true;
  const Curve want = Train(run), got = Train(evaluating);
  ASSERT_EQ(got.failed, "");
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.weights, want.weights);
}

}  // namespace
}  // namespace trireme::test
