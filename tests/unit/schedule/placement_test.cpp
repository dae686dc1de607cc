// Times of groups over nodes: rings, two levels, ports that ranks share, bridged pairs, devices that ranks share.
#include "engine/schedule/placement.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/schedule/cost_model.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

using testing::PlanOf;
using testing::SmallPlan;

SmallPlan Ranks(int64_t ranks, int64_t tp, int64_t pp) {
  SmallPlan small;
  small.ranks = ranks;
  small.tp = tp;
  small.pp = pp;
  small.heads = 8;
  small.hidden = 64;
  small.layers = 4;
  small.bf16 = true;
  return small;
}

Cluster Nodes(int64_t nodes, int64_t devices, int64_t ports) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = devices;
  cluster.device.rates[DType::kBFloat16] = {1e12, 0, 0, 0};
  cluster.node_link.all = {100e9, 0, 0, 0};
  cluster.network.port.all = {10e9, 0, 0, 0};
  cluster.network.ports_per_node = ports;
  return cluster;
}

TEST(Placement, RingsInsideANode) {
  const Plan plan = PlanOf(Ranks(8, 4, 1));
  Cluster cluster = Nodes(1, 8, 1);
  cluster.node_link.all = {100e9, 2e6, 1e-5, 1e-6};
  const Placement placement(plan, cluster);
  const double fixed = 1e-5 + 2 * 1e-6 + 2e6 / 100e9;  // of four ranks
  EXPECT_DOUBLE_EQ(fixed + 1.5e9 / 100e9, placement.Seconds(Group::kTp, Collective::kAllReduce, 1e9));
  EXPECT_DOUBLE_EQ(fixed + 0.75e9 / 100e9, placement.Seconds(Group::kTp, Collective::kAllGather, 1e9));
}

TEST(Placement, OperationsHaveRatesOfTheirOwn) {
  const Plan plan = PlanOf(Ranks(8, 4, 1));
  Cluster cluster = Nodes(1, 8, 1);
  cluster.node_link.all_gather = LinkRate{50e9, 0, 0, 0};
  const Placement placement(plan, cluster);
  EXPECT_DOUBLE_EQ(0.75e9 / 50e9, placement.Seconds(Group::kTp, Collective::kAllGather, 1e9));
  EXPECT_DOUBLE_EQ(0.75e9 / 100e9, placement.Seconds(Group::kTp, Collective::kReduceScatter, 1e9));
}

// tp 8 over two nodes of four, four ports each: one ring sends 2 x 7/8 over each boundary, two levels half as much.
TEST(Placement, TheFasterOfRingAndTwoLevels) {
  const Plan plan = PlanOf(Ranks(8, 8, 1));
  Cluster cluster = Nodes(2, 4, 4);
  const double two_levels = 2 * 0.75e9 / 100e9 + 2 * 0.5 * (1e9 / 4) / 10e9;
  EXPECT_DOUBLE_EQ(two_levels, Placement(plan, cluster).Seconds(Group::kTp, Collective::kAllReduce, 1e9));
  cluster.network.hierarchical = false;
  EXPECT_DOUBLE_EQ(1.75e9 / 40e9, Placement(plan, cluster).Seconds(Group::kTp, Collective::kAllReduce, 1e9));
  // Where the node is slower than its ports one ring is the faster.
  cluster.network.hierarchical = true;
  cluster.node_link.all.bytes_per_second = 20e9;
  EXPECT_DOUBLE_EQ(1.75e9 / 20e9, Placement(plan, cluster).Seconds(Group::kTp, Collective::kAllReduce, 1e9));
}

// tp 4 inside nodes, dp 4 across them: four groups of dp share the node's ports.
TEST(Placement, GroupsOfANodeShareItsPorts) {
  const Plan plan = PlanOf(Ranks(16, 4, 1));
  for (const int64_t ports : {1, 4}) {
    const Cluster cluster = Nodes(4, 4, ports);
    const Placement placement(plan, cluster);
    EXPECT_DOUBLE_EQ(0.75e9 / (10e9 * static_cast<double>(ports) / 4),
                     placement.Seconds(Group::kDp, Collective::kReduceScatter, 1e9));
  }
  // Half of a node's devices reach half of its ports, and at least one.
  const Plan small = PlanOf(Ranks(4, 2, 1));
  const Cluster cluster = Nodes(2, 4, 4);
  const Placement half(small, cluster);
  EXPECT_DOUBLE_EQ(0.5e9 / (10e9 * 2 / 2), half.Seconds(Group::kDp, Collective::kReduceScatter, 1e9));
}

TEST(Placement, TransfersBetweenStages) {
  const Plan plan = PlanOf(Ranks(8, 2, 2));  // stage 0 is ranks 0 to 3
  EXPECT_DOUBLE_EQ(1e9 / 100e9, Placement(plan, Nodes(1, 8, 1)).TransferSeconds(0, 1, 1e9));
  EXPECT_DOUBLE_EQ(1e9 / (10e9 / 4), Placement(plan, Nodes(2, 4, 1)).TransferSeconds(0, 1, 1e9));
  EXPECT_DOUBLE_EQ(1e9 / 10e9, Placement(plan, Nodes(2, 4, 8)).TransferSeconds(0, 1, 1e9)) << "one port at most";
}

TEST(Placement, BridgedPairs) {
  const Plan plan = PlanOf(Ranks(8, 2, 1));
  Cluster cluster = Nodes(1, 8, 1);
  cluster.pair_link = LinkDescription{{200e9, 0, 0, 0}, {}, {}, {}, {}};
  const Placement placement(plan, cluster);
  EXPECT_DOUBLE_EQ(1e9 / 200e9, placement.Seconds(Group::kTp, Collective::kAllReduce, 1e9));
  EXPECT_DOUBLE_EQ(1.5e9 / 100e9, placement.Seconds(Group::kDp, Collective::kAllReduce, 1e9));
}

// Four ranks of one device: each product takes four times as long.
TEST(Placement, RanksThatShareADevice) {
  const Plan alone = PlanOf(Ranks(4, 1, 1));
  const Cluster four = Nodes(1, 4, 1), one = Nodes(1, 1, 1);
  const CostModel apart(alone, four), together(alone, one);
  EXPECT_NEAR(4, together.ProductSeconds(512, 512, 512) / apart.ProductSeconds(512, 512, 512), 1e-9);
}

// Filled rounds of tiles, the nearest measured shape, and what tensor parallelism leaves.
TEST(CostModel, RatesOfProducts) {
  const Plan plan = PlanOf(Ranks(8, 8, 1));
  Cluster cluster = Nodes(1, 8, 1);
  const double flops = 2.0 * 4096 * 4096 * 4096;
  const auto seconds = [&] { return CostModel(plan, cluster).ProductSeconds(4096, 4096, 4096); };
  EXPECT_NEAR(flops / 1e12, seconds(), 1e-9);
  cluster.device.split_efficiency = {{8, 0.8}};
  EXPECT_NEAR(flops / 0.8e12, seconds(), 1e-9);
  cluster.device.split_efficiency.clear();
  cluster.device.multiprocessors = 100;  // 512 tiles in 6 rounds
  EXPECT_NEAR(flops / (1e12 * std::sqrt(512.0 / 600)), seconds(), 1e-9);
  cluster.device.products = {{DType::kBFloat16, 4000, 4000, 4000, 0.5e12}, {DType::kBFloat16, 64, 64, 64, 0.1e12}};
  EXPECT_NEAR(flops / 0.5e12, seconds(), 1e-9);
  cluster.device.kernel_seconds = 1;
  EXPECT_NEAR(1 + flops / 0.5e12, seconds(), 1e-9);
}

}  // namespace
}  // namespace trireme
