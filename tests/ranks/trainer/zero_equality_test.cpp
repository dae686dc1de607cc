// Every data-parallel layout trains like one rank, in double precision: only there does every missing collective show.
#include <gtest/gtest.h>

#include "tests/ranks/trainer/tiny_run.h"

namespace trireme::test {
namespace {

const Curve& OneRank(bool sgd, bool tied) {
  static std::map<std::pair<bool, bool>, Curve> curves;
  const auto key = std::pair(sgd, tied);
  if (!curves.contains(key)) {
    TinyRun run{.sgd = sgd, .tied = tied, .clip = 0};
    if (!sgd) {  // half of what the norm is at the start, so that clipping acts on every step
      run.steps = 1;
      run.clip = 0.5 * Train(run).norms.at(0);
      run.steps = 12;
    }
    curves[key] = Train(run);
  }
  return curves[key];
}

using Layout = std::tuple<int, int, int64_t, bool>;  // stage, ranks, accumulation, SGD

class ZeroEquality : public ::testing::TestWithParam<Layout> {};

TEST_P(ZeroEquality, EqualsOneRankInFp64) {
  const auto [stage, world, accumulation, sgd] = GetParam();
  const Curve& want = OneRank(sgd, true);
  ASSERT_EQ(want.failed, "");
  TinyRun run{.world = world, .zero_stage = stage, .accumulation = accumulation, .sgd = sgd};
  if (!sgd) {
    TinyRun first{.steps = 1};
    run.clip = 0.5 * Train(first).norms.at(0);
  }
  const Curve got = Train(run);
  ASSERT_EQ(got.failed, "");
  EXPECT_LE(RelativeDifference(got.losses, want.losses), 1e-12);
  EXPECT_LE(RelativeDifference(got.norms, want.norms), 1e-12);
  EXPECT_LE(WeightDifference(got.weights, want.weights), 1e-12);
  EXPECT_TRUE(got.ranks_agree);
  EXPECT_TRUE(got.replicas_equal);
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
    const Curve got = Train({.world = 2, .zero_stage = stage, .accumulation = 3, .sgd = true, .tied = false});
    ASSERT_EQ(got.failed, "");
    EXPECT_LE(RelativeDifference(got.losses, want.losses), 1e-12);
    EXPECT_LE(WeightDifference(got.weights, want.weights), 1e-12);
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
