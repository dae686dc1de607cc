#include "engine/plan/throughput.h"

#include <gtest/gtest.h>

#include "tests/unit/plan/small_plan.h"

namespace trireme::testing {
namespace {

TEST(Throughput, OBS_01_OneCounterOfTheModelsOwnWork) {
  SmallPlan small;
  const Plan plan = PlanOf(small);
  // Width 8, 2 blocks, 128 rows of the padded vocabulary, 8 tokens a sequence.
  const double forward = 2 * (2 * 12 * 64 + 2 * 8 * 8) + 2 * 128 * 8;
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(plan), 3 * forward);
  small.tp = 2;
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(PlanOf(small)), 3 * (forward + 2 * (256 - 128) * 8));  // rows padded to 256
  small.tp = 1;
  small.recompute = Recompute::kFull;
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(PlanOf(small)), 3 * forward);  // work done again is none of the model's

  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(plan, AttentionCount::kWhole), 3 * (forward + 2 * 2 * 8 * 8));
  // Each of two tensor-parallel ranks makes half of it; the vocabulary is padded to 256 rows for them.
  SmallPlan split;
  split.tp = 2;
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(PlanOf(split)), 3 * (forward + 2 * 128 * 8));

  const Throughput rate = ThroughputOf(plan, /*tokens=*/1e9, /*seconds=*/0.5, /*peak_tflops=*/100);
  EXPECT_DOUBLE_EQ(rate.tokens_per_second, 2e9);
  EXPECT_DOUBLE_EQ(rate.tokens_per_second_per_rank, 1e9);
  EXPECT_DOUBLE_EQ(rate.tflops_per_rank, 1e9 * 3 * forward / 1e12);
  EXPECT_DOUBLE_EQ(rate.mfu.value(), rate.tflops_per_rank / 100);
  EXPECT_FALSE(ThroughputOf(plan, 1, 1, std::nullopt).mfu);
}

TEST(Throughput, OBS_01_PeakByTheDriversName) {
  EXPECT_EQ(PeakTflops("NVIDIA H200", DType::kBFloat16), 989);
  EXPECT_EQ(PeakTflops("NVIDIA A100-SXM4-80GB", DType::kFloat16), 312);
  EXPECT_EQ(PeakTflops("NVIDIA A100 80GB PCIe", DType::kFloat32), 19.5);
  EXPECT_EQ(PeakTflops("NVIDIA H100 PCIe", DType::kBFloat16), 756);
  EXPECT_EQ(PeakTflops("NVIDIA L40S", DType::kBFloat16), 362);
  EXPECT_FALSE(PeakTflops("Tesla V100-SXM2-16GB", DType::kBFloat16));  // it has no such units
  EXPECT_FALSE(PeakTflops("NVIDIA RTX A4000", DType::kBFloat16));      // is no A40
}

}  // namespace
}  // namespace trireme::testing
