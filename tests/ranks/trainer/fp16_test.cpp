// fp16 training: the loss scale lives on the device, an overflow anywhere skips the step everywhere, and a resumed run
// is the run that never stopped.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/trainer/run_texts.h"
#include "engine/trainer/step_watch.h"
#include "tests/ranks/trainer/tiny_run.h"
#include "tests/support/run_threads.h"

namespace trireme::test {
namespace {

TinyRun Fp16Run(int world, int stage) {
  return {.world = world, .zero_stage = stage, .accumulation = 3, .fp64 = false, .clip = 0.5, .fp16 = true};
}

class Fp16 : public ::testing::TestWithParam<std::tuple<int, int>> {};

// Layouts differ by the order of sums in fp32 and by where fp16 rounds.
TEST_P(Fp16, EqualsOneRankWithinRounding) {
  const auto [stage, world] = GetParam();
  TinyRun run = Fp16Run(1, 0), layout = Fp16Run(world, stage);
  run.inject_overflow = layout.inject_overflow = {2, 5};
  run.hysteresis = layout.hysteresis = 1;
  const Curve want = Train(run), got = Train(layout);
  ASSERT_EQ(want.failed, "");
  ASSERT_EQ(got.failed, "");
  EXPECT_EQ(got.scales, want.scales);
  EXPECT_LE(RelativeDifference(got.losses, want.losses), 3e-5);
  EXPECT_LE(WeightDifference(got.weights, want.weights), 1e-3);
  EXPECT_TRUE(got.ranks_agree);
  EXPECT_TRUE(got.replicas_equal);
}

TEST_P(Fp16, ResumedRunIsBitwiseTheSame) {
  const auto [stage, world] = GetParam();
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("trireme_fp16_" + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  TinyRun whole = Fp16Run(world, stage);
  whole.inject_overflow = {1, 2, 6};  // hysteresis spent before the save, the scale growing around it
  whole.loss_scale_window = 3;
  TinyRun first = whole, second = whole;
  first.steps = 5;
  first.save = second.load = folder;
  const Curve want = Train(whole), begun = Train(first), got = Train(second);
  std::filesystem::remove_all(folder);
  ASSERT_EQ(begun.failed, "");
  ASSERT_EQ(got.failed, "");
  EXPECT_EQ(got.losses, std::vector<double>(want.losses.begin() + 5, want.losses.end()));
  EXPECT_EQ(got.scales, std::vector<double>(want.scales.begin() + 5, want.scales.end()));
  EXPECT_EQ(got.weights, want.weights);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Fp16, ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values(1, 2)));

class Overflow : public ::testing::TestWithParam<int> {};

// An infinity that one rank alone can see, in its share of the reduced gradients.
TEST_P(Overflow, OnOneRankSkipsTheStepOnAll) {
  const int stage = GetParam();
  TinyRun run = Fp16Run(2, stage);
  run.accumulation = 1;
  const std::string failed = RunThreadRanks(2, [&](ThreadRank& self) {
    RankWorld world;
    world.rank = self.rank;
    world.world_size = 2;
    world.world = self.MakeCommunicator("world");
    world.make_group = self.GroupMaker();
    Trainer trainer(SetupOf(run), std::move(world));
    trainer.InitialiseWeights(7);
    RankState& state = trainer.state();
    const auto step = [&](bool poison) {
      trainer.Forward(SyntheticFill(trainer), 0);
      trainer.Backward(0);
      trainer.executor().Drain();
      const int64_t first = stage == 0 ? self.rank * trainer.plan().units[1].shard_elements : 0;
      if (poison && self.rank == 1) state.own_gradient(1).narrow(0, first, 1).fill_(INFINITY);
      trainer.Step();
      const StepResult result = trainer.FinishStep();
      trainer.executor().Drain();
      return result;
    };
    EXPECT_FALSE(step(false).skipped);
    std::vector<at::Tensor> before;
    for (int u = 0; u < state.num_units(); ++u) {
      before.insert(before.end(), {state.masters(u).clone(), state.weights(u).clone()});
    }
    const StepResult result = step(true);
    EXPECT_TRUE(result.skipped);
    EXPECT_EQ(result.applied_steps, 1);
    EXPECT_EQ(result.skipped_steps, 1);
    EXPECT_EQ(result.loss_scale, stage == 0 ? 32768 : 65536);  // hysteresis 2, which DeepSpeed has from stage 1 on
    EXPECT_TRUE(std::isfinite(result.loss));
    for (int u = 0; u < state.num_units(); ++u) {
      EXPECT_TRUE(at::equal(state.masters(u), before[static_cast<size_t>(2 * u)])) << "unit " << u;
      EXPECT_TRUE(at::equal(state.weights(u), before[static_cast<size_t>(2 * u + 1)])) << "unit " << u;
    }
    EXPECT_FALSE(step(false).skipped);
  });
  EXPECT_EQ(failed, "");
}

INSTANTIATE_TEST_SUITE_P(Stages, Overflow, ::testing::Values(0, 1, 2, 3));

TEST(LossScale, StaticNeverChangesAndEndsAfterFiftySkips) {
  TinyRun run = Fp16Run(1, 1);
  run.loss_scale = 128;
  run.accumulation = 1;
  run.global_batch = 2;
  run.inject_overflow = {1};
  const Curve one = Train(run);
  ASSERT_EQ(one.failed, "");
  EXPECT_EQ(one.scales, std::vector<double>(12, 128));
  run.steps = 60;
  for (int64_t step = 3; step < 60; ++step) run.inject_overflow.push_back(step);
  const Curve stuck = Train(run);
  EXPECT_NE(stuck.failed.find("TRN006"), std::string::npos) << stuck.failed;
  EXPECT_NE(stuck.failed.find("50 steps in a row were skipped at loss scale 128"), std::string::npos) << stuck.failed;
}

TEST(LossScale, NUM_01_AnOverflowAtTheFloorEndsTheRunWithItsNumbers) {
  TinyRun run = Fp16Run(1, 1);
  run.initial_scale_power = 2;
  run.hysteresis = 1;
  run.inject_overflow = {4, 5, 6};
  const Curve got = Train(run);
  EXPECT_NE(got.failed.find("TRN007"), std::string::npos) << got.failed;
  EXPECT_NE(got.failed.find("with the loss scale at 1, the smallest allowed"), std::string::npos) << got.failed;
  EXPECT_NE(got.failed.find("skipped steps in a row: 3; the last loss scales: 4 4 4 4 4 2 1"), std::string::npos)
      << got.failed;
  EXPECT_NE(got.failed.find("step 6"), std::string::npos) << got.failed;
  EXPECT_NE(got.failed.find("first bad value: infinity in the gradient of"), std::string::npos) << got.failed;
  EXPECT_NE(got.failed.find(", backward of micro-batch 0 on rank 0"), std::string::npos) << got.failed;
}

// An embedding row past fp16's range, 70000 say, is infinite in fp16: the weight is named.
TEST(LossScale, NUM_01_AWeightPastTheRangeIsNamed) {
  TinyRun run = Fp16Run(1, 1);
  run.initial_scale_power = 0;
  run.hysteresis = 1;
  const std::string failed = RunThreadRanks(1, [&](ThreadRank& self) {
    RankWorld world;
    world.world = self.MakeCommunicator("world");
    world.make_group = self.GroupMaker();
    Trainer trainer(SetupOf(run), std::move(world));
    trainer.InitialiseWeights(7);
    trainer.state().weights(0).narrow(0, 24, 24).fill_(INFINITY);
    trainer.StartStep(SyntheticFill(trainer));
    trainer.FinishStep();
  });
  EXPECT_NE(failed.find("TRN007"), std::string::npos) << failed;
  EXPECT_NE(failed.find("first bad value: infinity in the weight transformer.wte.weight (element 24), forward"),
            std::string::npos)
      << failed;
  EXPECT_NE(failed.find("forward itself leaves fp16's range"), std::string::npos) << failed;
}

// At stage 0 the scale stays at the floor, as in DeepSpeed, but not for ever.
TEST(LossScale, NUM_02_SkipsForEverEndTheRun) {
  TinyRun run = Fp16Run(1, 0);
  run.initial_scale_power = 1;
  run.accumulation = 1;
  run.global_batch = 2;
  run.steps = 80;
  for (int64_t step = 1; step < 80; ++step) run.inject_overflow.push_back(step);
  const Curve got = Train(run);
  EXPECT_NE(got.failed.find("TRN006"), std::string::npos) << got.failed;
  EXPECT_NE(got.failed.find("51 steps in a row were skipped at loss scale 1"), std::string::npos) << got.failed;
}

// An initial scale far too high comes down by itself: no error, and those skips are counted apart.
TEST(LossScale, NUM_03_AHighInitialScaleIsCalibrated) {
  TinyRun run = Fp16Run(1, 1);
  run.initial_scale_power = 40;
  run.steps = 60;
  run.accumulation = 1;
  run.global_batch = 2;
  run.inject_overflow = {58};
  const Curve got = Train(run);
  ASSERT_EQ(got.failed, "");
  EXPECT_GT(got.skips.calibrating, 10);
  EXPECT_GE(got.skips.later, 1);  // step 58, and where gradients grow as the model learns
  EXPECT_LE(got.scales.back(), std::ldexp(1.0, 30));
}

// What a run of skipped steps throws: id and text.
std::string Skips(const Config& config, StepResult result, int64_t steps) {
  StepWatch watch(config, /*speaks=*/false);
  result.skipped = true;
  try {
    for (int64_t step = 0; step < steps; ++step) watch.Check(step, result);
  } catch (const Error& error) {
    return error.id() + " " + error.message();
  }
  return "";
}

TEST(StepWatch, NUM_05_Bf16SkipsAreToldAndBounded) {
  Config config;
  config.bf16.enabled = true;
  StepResult nan;
  nan.loss = 2.5;
  nan.grad_norm = NAN;
  EXPECT_EQ(Skips(config, nan, 49), "");
  EXPECT_NE(Skips(config, nan, 50).find("TRN006 50 steps in a row were skipped: loss 2.5, gradient norm nan"),
            std::string::npos)
      << Skips(config, nan, 50);
}

TEST(StepWatch, NUM_22_ClippedStepsAreCounted) {
  Config config;
  config.gradient_clipping = 0.5;
  StepWatch watch(config, /*speaks=*/false);
  StepResult result;
  for (const double norm : {3.0, 0.2, 0.51}) {
    result.grad_norm = norm;
    watch.Check(0, result);
  }
  EXPECT_EQ(watch.clipped_steps(), 2);
  EXPECT_NEAR(ClipFactor(3.0, 0.5) * 3.0, 0.5, 1e-6);
  for (const double norm : std::initializer_list<double>{0.0, 0.2, INFINITY, NAN})
    EXPECT_EQ(ClipFactor(norm, 0.5), 1) << norm;
  EXPECT_EQ(ClipFactor(1e300, 0.5), 0.5 / 1e300);
  EXPECT_EQ(ClipFactor(3.0, -1), 1);
}

TEST(StepWatch, NUM_08_OnlyFp16SpeaksOfAScale) {
  Config wide, bf16, fp16;
  bf16.bf16.enabled = fp16.fp16.enabled = true;
  fp16.fp16.loss_scale = 64;
  StepResult inf;
  inf.loss = INFINITY;
  inf.grad_norm = NAN;
  inf.loss_scale = 64;
  EXPECT_NE(Skips(wide, inf, 1).find("loss inf or gradient norm nan is not finite"), std::string::npos);
  EXPECT_EQ(Skips(wide, inf, 1).find("scale"), std::string::npos);
  EXPECT_EQ(Skips(bf16, inf, 50).find("scale"), std::string::npos);
  EXPECT_NE(Skips(fp16, inf, 50).find("at loss scale 64"), std::string::npos);
}

// As long as overflows lower the scale there is hope, however many they are.
TEST(StepWatch, LoweringTheScaleIsACure) {
  Config config;
  config.fp16.enabled = true;
  StepWatch watch(config, /*speaks=*/false);
  StepResult result;
  result.grad_norm = INFINITY;
  result.skipped = true;
  result.loss_scale = 65536;
  for (int64_t step = 0; step < 100; ++step) {
    result.loss_scale /= 2;
    watch.Check(step, result);
  }
  EXPECT_EQ(watch.skips().calibrating, 100);
  EXPECT_EQ(watch.skips().later, 0);
}

TEST(Counters, KeepTheScalerAndReadFilesWithoutOne) {
  RunCounters counters{.steps = 9, .loss_scale = 4096};
  EXPECT_FALSE(CountersFromJson(CountersToJson(counters), "").scaler);
  counters.scaler = ScalerCounters{.growth_tracker = 7, .hysteresis = 2};
  const RunCounters read = CountersFromJson(CountersToJson(counters), "");
  ASSERT_TRUE(read.scaler);
  EXPECT_EQ(read.loss_scale, 4096);
  EXPECT_EQ(read.scaler->growth_tracker, 7);
  EXPECT_EQ(read.scaler->hysteresis, 2);
  const RunCounters old =
      CountersFromJson(R"({"steps":3,"applied_steps":3,"skipped_steps":0,"consumed_samples":24,"loss_scale":1.0})", "");
  EXPECT_EQ(old.steps, 3);
  EXPECT_FALSE(old.scaler);
}

// A checkpoint of a run without a loss scale starts an fp16 run at the config's scale; one of fp16 leaves bf16 at 1.
TEST(Counters, AnotherPrecisionStartsItsOwnScale) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("trireme_fp16_other_" + std::to_string(::getpid()));
  for (const bool from_fp16 : {false, true}) {
    std::filesystem::remove_all(folder);
    TinyRun first = Fp16Run(1, 1), second = first;
    (from_fp16 ? second : first).fp16 = false;
    (from_fp16 ? second : first).bf16 = true;
    first.steps = 2;
    second.steps = 4;
    first.save = second.load = folder;
    ASSERT_EQ(Train(first).failed, "");
    const Curve got = Train(second);
    ASSERT_EQ(got.failed, "");
    EXPECT_EQ(got.scales, std::vector<double>(2, from_fp16 ? 1 : 65536));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trireme::test
