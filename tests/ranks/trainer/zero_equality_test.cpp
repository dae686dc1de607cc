// Every data-parallel layout trains like one rank, in double precision: only there does every missing collective show.
#include <gtest/gtest.h>

#include "tests/ranks/trainer/trains_alike.h"

namespace trireme::test {
namespace {

const Reference& OneRank(bool sgd) {
  static const Reference with_sgd = ReferenceOf({.sgd = true}), with_adamw = ReferenceOf({.sgd = false});
  return sgd ? with_sgd : with_adamw;
}

using Layout = std::tuple<int, int, int64_t, bool>;  // stage, ranks, accumulation, SGD

class ZeroEquality : public ::testing::TestWithParam<Layout> {};

TEST_P(ZeroEquality, EqualsOneRankInFp64) {
  const auto [stage, world, accumulation, sgd] = GetParam();
  const Reference& one_rank = OneRank(sgd);
  TinyRun run = one_rank.run;
  run.world = world;
  run.zero_stage = stage;
  run.accumulation = accumulation;
  ExpectTrainsAlike(Train(run), one_rank.curve);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ZeroEquality,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values(1, 2, 3),
                                            ::testing::Values(1, 3), ::testing::Bool()),
                         [](const auto& layout) {
                           return "Zero" + std::to_string(std::get<0>(layout.param)) + "Ranks" +
                                  std::to_string(std::get<1>(layout.param)) + "Accumulation" +
                                  std::to_string(std::get<2>(layout.param)) +
                                  (std::get<3>(layout.param) ? "Sgd" : "AdamW");
                         });

TEST(ZeroEquality, UntiedHead) {
  TinyRun one{.sgd = true, .tied = false};
  const Curve want = Train(one);
  for (const int stage : {1, 3}) {
    ExpectTrainsAlike(Train({.world = 2, .zero_stage = stage, .accumulation = 3, .sgd = true, .tied = false}), want);
  }
}

TEST(ZeroEquality, RecomputationIsBitwise) {
  for (const int stage : {0, 2, 3}) {
    const TinyRun kept{.world = 2, .zero_stage = stage, .accumulation = 3};
    TinyRun recomputed = kept;
    recomputed.recompute = Recompute::kFull;
    const Curve want = Train(kept), got = Train(recomputed);
    ASSERT_EQ(got.failed, "");
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.weights, want.weights);
  }
}

}  // namespace
}  // namespace trireme::test
