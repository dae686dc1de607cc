// First values of the five schedulers, starting with construction; those of DeepSpeed 0.19.8.
#include "engine/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "parsers/cli.h"

namespace trireme {
namespace {

SchedulerConfig Warmup(SchedulerType type, WarmupType warmup, int64_t total) {
  SchedulerConfig s;
  s.type = type;
  s.warmup_type = warmup;
  s.warmup_num_steps = 4;
  s.total_num_steps = total;
  return s;
}

void ExpectRates(const SchedulerConfig& scheduler, const std::vector<double>& expected) {
  OptimizerConfig optimizer;
  optimizer.lr = 1e-3;
  const LrSchedule schedule(scheduler, optimizer);
  for (size_t update = 0; update < expected.size(); ++update) {
    EXPECT_NEAR(schedule.At(static_cast<int64_t>(update)).lr, expected[update],
                1e-5 * std::abs(expected[update]) + 1e-12)
        << "update " << update;
  }
}

TEST(LrSchedule, ConstantWithoutScheduler) { ExpectRates({}, {1e-3, 1e-3, 1e-3}); }

TEST(LrSchedule, WarmupLrLog) {
  ExpectRates(Warmup(SchedulerType::kWarmupLR, WarmupType::kLog, 0), {0, 0, 5e-4, 7.92481e-4, 1e-3, 1e-3});
}

TEST(LrSchedule, WarmupLrLinear) {
  SchedulerConfig s = Warmup(SchedulerType::kWarmupLR, WarmupType::kLinear, 0);
  s.warmup_min_lr = 1e-4;
  ExpectRates(s, {1e-4, 1e-4, 3.25e-4, 5.5e-4, 7.75e-4, 1e-3});
}

TEST(LrSchedule, WarmupDecayLr) {
  ExpectRates(Warmup(SchedulerType::kWarmupDecayLR, WarmupType::kLog, 10),
              {0, 0, 5e-4, 7.92481e-4, 1e-3, 1e-3, 8.33333e-4, 6.66667e-4, 5e-4, 3.33333e-4, 1.66667e-4, 0});
}

TEST(LrSchedule, WarmupCosineLr) {
  ExpectRates(Warmup(SchedulerType::kWarmupCosineLR, WarmupType::kLinear, 10),
              {0, 0, 2.5e-4, 5e-4, 7.5e-4, 9.33019e-4, 7.50025e-4, 5.0005e-4, 2.50075e-4, 6.70806e-5, 1e-7, 1e-7});
}

TEST(LrSchedule, LrRangeTest) {
  SchedulerConfig s;
  s.type = SchedulerType::kLRRangeTest;
  s.lr_range_test_min_lr = 1e-4;
  s.lr_range_test_step_size = 2;
  ExpectRates(s, {1e-4, 1.5e-4, 2e-4, 2.5e-4, 3e-4, 3.5e-4, 4e-4});
  s.lr_range_test_staircase = true;
  ExpectRates(s, {1e-4, 1e-4, 2e-4, 2e-4, 3e-4});
}

SchedulerConfig Cycle() {
  SchedulerConfig s;
  s.type = SchedulerType::kOneCycle;
  s.cycle_min_lr = 1e-4;
  s.cycle_max_lr = 1e-3;
  s.cycle_first_step_size = s.cycle_second_step_size = 4;
  s.decay_step_size = 2;
  s.decay_lr_rate = 1;
  return s;
}

TEST(LrSchedule, OneCycle) {
  ExpectRates(Cycle(), {1e-4, 3.25e-4, 5.5e-4, 7.75e-4, 1e-3, 7.75e-4, 5.5e-4, 3.25e-4, 1e-4, 6.66667e-5, 5e-5, 4e-5});
}

TEST(LrSchedule, OneCycleStairsHoldTheRate) {
  SchedulerConfig s = Cycle();
  s.cycle_first_stair_count = s.cycle_second_stair_count = 2;
  ExpectRates(s, {1e-4, 1e-4, 5.5e-4, 5.5e-4, 1e-3, 5.5e-4, 5.5e-4, 1e-4, 1e-4});
}

TEST(LrSchedule, OneCycleMovesBetasAndSetsThemAtConstruction) {
  OptimizerConfig optimizer;
  const LrSchedule schedule(Cycle(), optimizer);
  EXPECT_DOUBLE_EQ(schedule.At(0).beta1, 0.8);
  EXPECT_DOUBLE_EQ(schedule.At(0).beta2, 0.99);
  EXPECT_DOUBLE_EQ(schedule.At(1).beta1, 0.9 - 0.1 * 0.25);
  EXPECT_DOUBLE_EQ(schedule.At(4).beta1, 0.8);
  optimizer.type = OptimizerType::kSgd;
  optimizer.momentum = 0.7;
  EXPECT_DOUBLE_EQ(LrSchedule(Cycle(), optimizer).At(2).beta1, 0.7);
}

// Warm-ups of 0 and 1 steps divide by no logarithm of 1: they take two updates, as in DeepSpeed.
TEST(LrSchedule, CFG_17_ShortWarmUpsGiveFiniteRates) {
  for (const int64_t steps : {0, 1}) {
    for (const WarmupType warmup : {WarmupType::kLog, WarmupType::kLinear}) {
      SchedulerConfig s = Warmup(SchedulerType::kWarmupDecayLR, warmup, 10);
      s.warmup_num_steps = steps;
      const LrSchedule schedule(s, {});
      for (int64_t update = 0; update < 10; ++update) {
        EXPECT_TRUE(std::isfinite(schedule.At(update).lr)) << steps << " " << update;
      }
      EXPECT_EQ(schedule.At(warmup == WarmupType::kLog ? 2 : 3).lr, 1e-3);
    }
  }
}

// Lengths count optimizer steps, whatever ranks and accumulation: ten of them, and the rate is at its peak.
TEST(LrSchedule, CFG_19_LengthsCountOptimizerSteps) {
  const auto rates = [](int64_t ranks, int64_t accumulation) {
    TrainFlags flags;
    flags.gradient_accumulation_steps = accumulation;
    const ParseResult r = ParseConfigText(R"({"train_micro_batch_size_per_gpu":1,
      "optimizer":{"type":"AdamW","params":{"lr":1e-3}},
      "scheduler":{"type":"WarmupLR","params":{"warmup_num_steps":10,"warmup_type":"linear"}}})",
                                          "ds.json", flags, ranks);
    EXPECT_FALSE(r.diagnostics.HasErrors()) << r.diagnostics.Render();
    EXPECT_EQ(r.config.batch.train_batch_size, ranks * accumulation);
    const LrSchedule schedule(r.config.scheduler, r.config.optimizer);
    std::vector<double> lr;
    for (int64_t update = 0; update < 14; ++update) lr.push_back(schedule.At(update).lr);
    return lr;
  };
  const std::vector<double> one = rates(1, 1);
  EXPECT_EQ(one, rates(2, 4));
  EXPECT_LT(one[10], 1e-3);  // DeepSpeed writes the first value at construction: step 10 of the schedule is update 11
  EXPECT_DOUBLE_EQ(one[11], 1e-3);
  EXPECT_DOUBLE_EQ(one[13], 1e-3);
}

}  // namespace
}  // namespace trireme
