// Predictions for ranks that are processes on the cores of one machine.
#include <gtest/gtest.h>

#include "engine/schedule/predict.h"
#include "parsers/cluster.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

using testing::PlanOf;
using testing::SmallPlan;

// What is sent takes no time, nor does element-wise work.
Cluster EightGpus() {
  Cluster cluster;
  cluster.name = "plain";
  cluster.devices_per_node = 8;
  cluster.device.rates[DType::kFloat32] = {1e12, 0, 0, 0};
  cluster.node_link.all = {1e15, 0, 0, 0};
  cluster.overlap = {0, 0, 0};
  return cluster;
}

SmallPlan Small() {
  SmallPlan small;
  small.layers = 8;
  small.hidden = 64;
  small.heads = 8;
  small.vocab = 16;
  small.positions = small.sequence = 128;
  return small;
}

Cluster TwoCores() {
  Cluster cluster = EightGpus();
  cluster.devices_per_node = 1;
  cluster.device.kind = DeviceKind::kCpu;
  cluster.host.cores = 2;
  return cluster;
}

double StepOf(int ranks, int pp, int64_t micro_batches, const Cluster& cluster) {
  SmallPlan small = Small();
  small.ranks = ranks;
  small.pp = pp;
  small.micro_batches = micro_batches;
  return Predict(PlanOf(small), cluster).step_seconds;
}

// One micro-batch goes through the stages one after the other: each has one thread of two, the other core is idle.
TEST(Predict, ARankOnTheCpuHasItsThreadsShare) {
  const double whole = StepOf(1, 1, 1, TwoCores());
  EXPECT_NEAR(2, StepOf(2, 2, 1, TwoCores()) / whole, 0.02);
  // Of two data-parallel ranks each does half of the samples, on half of the cores.
  EXPECT_NEAR(1, 2 * StepOf(1, 1, 1, TwoCores()) / StepOf(2, 1, 1, TwoCores()), 0.02);
}

// Four stages on two cores: the bubble of one is time for another, so that two cores' worth of work is the limit.
TEST(Predict, RanksThatWaitLeaveTheirCoreToOthers) {
  const double whole = StepOf(1, 1, 16, TwoCores()), shared = StepOf(4, 4, 16, TwoCores());
  EXPECT_GE(shared / whole, 0.99);
  EXPECT_LT(shared / whole, 1.12);  // without sharing (16 + 3) / 16 and more
  EXPECT_GT(4 * StepOf(4, 4, 16, EightGpus()) / StepOf(1, 1, 16, EightGpus()), 1.15);
}

// More ranks than cores take turns at what they send; on a core each they do not.
TEST(Predict, TransfersOfMoreRanksThanCoresTakeTurns) {
  Cluster slow = TwoCores();
  slow.node_link.all = {1e15, 0, 1, 0};  // a second each
  SmallPlan small = Small();
  small.zero_stage = 0;
  const auto reducing = [&](int ranks) {
    small.ranks = ranks;
    return Predict(PlanOf(small), slow).exposed.reduce;
  };
  EXPECT_NEAR(2, reducing(4) / reducing(2), 0.01);
}

}  // namespace
}  // namespace trireme
