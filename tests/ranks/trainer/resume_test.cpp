// A resumed run is the run that never stopped: bitwise in the same layout, equal in any other.
#include <gtest/gtest.h>

#include "tests/ranks/trainer/folder.h"
#include "tests/ranks/trainer/tiny_run.h"

namespace trireme::test {
namespace {

std::vector<double> Last(const std::vector<double>& all, size_t count) {
  return {all.end() - static_cast<int64_t>(count), all.end()};
}

class Resume : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(Resume, SameLayoutIsBitwise) {
  const auto [stage, world] = GetParam();
  const Folder folder;
  const TinyRun whole{.world = world, .zero_stage = stage, .accumulation = 3, .fp64 = false, .clip = 0.5};
  TinyRun first = whole, second = whole;
  first.steps = 5;
  first.save = second.load = folder.path;
  const Curve want = Train(whole), begun = Train(first), got = Train(second);
  ASSERT_EQ(begun.failed, "");
  ASSERT_EQ(got.failed, "");
  EXPECT_EQ(got.losses, Last(want.losses, 7));
  EXPECT_EQ(got.norms, Last(want.norms, 7));
  EXPECT_EQ(got.weights, want.weights);
}

TEST_P(Resume, OtherLayoutsSeeTheSameRun) {
  const auto [stage, world] = GetParam();
  const Folder folder;
  TinyRun first{.world = world, .zero_stage = stage, .accumulation = 3, .clip = 0.5};
  const Curve want = Train(first);
  first.steps = 5;
  first.save = folder.path;
  ASSERT_EQ(Train(first).failed, "");
  for (const auto& [other_stage, other_world, accumulation] :
       {std::tuple{0, 1, 1}, {1, 3, 1}, {2, 2, 1}, {3, 2, 3}, {3, 3, 2}}) {
    const Curve got = Train({.world = other_world,
                             .zero_stage = other_stage,
                             .accumulation = accumulation,
                             .clip = 0.5,
                             .load = folder.path});
    ASSERT_EQ(got.failed, "");
    EXPECT_LE(RelativeDifference(got.losses, Last(want.losses, 7)), 1e-12)
        << "ZeRO-" << other_stage << " x " << other_world;
    EXPECT_LE(WeightDifference(got.weights, want.weights), 1e-12);
    EXPECT_TRUE(got.replicas_equal);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Resume, ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values(1, 2)));

TEST(Resume, Bf16KeepsTheMasters) {
  const Folder folder;
  const TinyRun whole{.world = 2, .zero_stage = 2, .accumulation = 3, .fp64 = false, .bf16 = true, .clip = 0.5};
  TinyRun first = whole, second = whole;
  first.steps = 5;
  first.save = second.load = folder.path;
  const Curve want = Train(whole);
  ASSERT_EQ(Train(first).failed, "");
  const Curve got = Train(second);
  EXPECT_EQ(got.losses, Last(want.losses, 7));
  EXPECT_EQ(got.weights, want.weights);
  EXPECT_TRUE(want.replicas_equal);
}

// The shapes of the weights are the same with any number of heads: only the saved description tells.
TEST(Resume, AnotherModelIsRefused) {
  const Folder folder;
  TinyRun run{.steps = 1, .save = folder.path};
  ASSERT_EQ(Train(run).failed, "");
  run = {.heads = 4, .load = folder.path};
  const std::string failed = Train(run).failed;
  EXPECT_NE(failed.find("TRN012"), std::string::npos) << failed;
  EXPECT_NE(failed.find("num_attention_heads was 3 and is 4"), std::string::npos) << failed;
}

TEST(Resume, EvaluationsLeaveTrainingAlone) {
  for (const int stage : {0, 3}) {
    TinyRun run{.world = 2, .zero_stage = stage, .accumulation = 3, .fp64 = false};
    const Curve want = Train(run);
    run.evaluates = true;
    const Curve got = Train(run);
    ASSERT_EQ(got.failed, "");
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.weights, want.weights);
  }
}

// 61 tokens, padded to 64 rows a rank: what is saved is the true vocabulary, and no layout changes a bit of it.
TEST(Resume, LAY_07_PaddedVocabularyMakesTheRoundTrip) {
  for (const bool tied : {true, false}) {
    const Folder folder, merged;
    TinyRun split{.world = 3, .global_batch = 6, .steps = 3, .tied = tied, .tp = 3, .save = folder.path};
    TinyRun one{.global_batch = 6, .steps = 3, .tied = tied, .load = folder.path, .save = merged.path};
    TinyRun again = split;
    again.load = merged.path;
    again.save = "";
    const Curve want = Train(split), got = Train(one), back = Train(again);
    ASSERT_EQ(want.failed + got.failed + back.failed, "");
    EXPECT_EQ(got.weights, want.weights);
    EXPECT_EQ(back.weights, want.weights);
    EXPECT_EQ(want.weights.at("transformer.wte.weight").size(), 61u * 24);
  }
}

}  // namespace
}  // namespace trireme::test
