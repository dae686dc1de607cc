// Tensor parallelism, with and without sequence parallelism, and its products with pipelines and ZeRO train like one
// rank, in double precision.
#include <gtest/gtest.h>

#include "tests/ranks/trainer/trains_alike.h"

namespace trireme::test {
namespace {

// 6 heads; micro-batches of 3 x 11 tokens and of 6 x 11: their rows divide by 3 and by 2.
TinyRun Base(bool sgd) { return {.accumulation = 2, .global_batch = 24, .sgd = sgd, .heads = 6}; }

const Reference& OneRank(bool sgd) {
  static const Reference with_sgd = ReferenceOf(Base(true)), with_adamw = ReferenceOf(Base(false));
  return sgd ? with_sgd : with_adamw;
}

struct Layout {
  int tp, pp, dp, stage;
  bool sequence_parallel, sgd;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  Recompute recompute = Recompute::kNone;
};

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts;
  for (const bool sequence : {false, true}) {
    for (const int stage : {0, 1, 2, 3}) {
      const bool sgd = stage % 2 == 0;
      layouts.push_back({2, 1, 2, stage, sequence, sgd});
      layouts.push_back({3, 1, 1 + stage % 2, stage, sequence, !sgd});
      layouts.push_back({2, 2, 2, stage, sequence, !sgd, PipelineSchedule::kZeroBubble, Recompute::kFull});
      layouts.push_back({2, 3, 1, stage, sequence, sgd});
    }
    layouts.push_back({6, 1, 1, 0, sequence, false, PipelineSchedule::kOneForwardOneBackward, Recompute::kFull});
  }
  return layouts;
}

class TensorEquality : public ::testing::TestWithParam<Layout> {};

TEST_P(TensorEquality, EqualsOneRankInFp64) {
  const Layout layout = GetParam();
  const Reference& one_rank = OneRank(layout.sgd);
  TinyRun run = one_rank.run;
  run.world = layout.tp * layout.pp * layout.dp;
  run.zero_stage = layout.stage;
  run.tp = layout.tp;
  run.pp = layout.pp;
  run.sequence_parallel = layout.sequence_parallel;
  run.schedule = layout.schedule;
  run.recompute = layout.recompute;
  ExpectTrainsAlike(Train(run), one_rank.curve);
}

INSTANTIATE_TEST_SUITE_P(Layouts, TensorEquality, ::testing::ValuesIn(Layouts()), [](const auto& layout) {
  const Layout& l = layout.param;
  return "Tp" + std::to_string(l.tp) + "Pp" + std::to_string(l.pp) + "Dp" + std::to_string(l.dp) + "Zero" +
         std::to_string(l.stage) + (l.sequence_parallel ? "Sequence" : "") +
         (l.schedule == PipelineSchedule::kZeroBubble ? "ZeroBubble" : "") + (l.sgd ? "Sgd" : "AdamW") +
         (l.recompute == Recompute::kFull ? "Recompute" : "");
});

TEST(TensorEquality, UntiedHead) {
  TinyRun one = Base(true);
  one.tied = false;
  const Curve want = Train(one);
  for (const bool sequence : {false, true}) {
    TinyRun run = one;
    run.world = 3;
    run.tp = 3;
    run.sequence_parallel = sequence;
    ExpectTrainsAlike(Train(run), want);
  }
}

}  // namespace
}  // namespace trireme::test
