// First values of the five schedulers, starting with construction; those of DeepSpeed 0.19.8.
#include "engine/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <vector>

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

}  // namespace
}  // namespace trireme
