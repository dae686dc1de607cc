// What is said of layouts that work and cost more than they need to; each sentence is checked by planning what it says.
#include "engine/advise/advice.h"

#include <gtest/gtest.h>

#include "engine/advise/fill.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

using testing::ConfigOf;
using testing::ModelOf;
using testing::SmallPlan;

struct Asked {
  Job job;
  Plan plan;
  Cluster cluster;
  std::optional<Prediction> prediction;
  std::vector<std::string> Advice(double device_gib, bool with_cluster = true) const {
    const FillOptions limit{.limit_bytes = MemoryLimit(device_gib * (1 << 30), MemoryScope::kProgram)};
    if (!with_cluster) return AdviceOn({job, plan, nullptr, nullptr, limit});
    return AdviceOn({job, plan, &cluster, &*prediction, limit});
  }
};

Asked Ask(const SmallPlan& small, const std::string& cluster, int64_t nodes, int64_t devices) {
  Asked asked{{ConfigOf(small), ModelOf(small), {}}, {}, FindCluster(cluster), {}};
  asked.cluster.nodes = nodes;
  asked.cluster.devices_per_node = devices;
  asked.job.inputs.world_size = small.ranks;
  asked.job.inputs.sequence_length = small.sequence;
  asked.plan = *PlanOf(asked.job, asked.job.config);
  asked.prediction = Predict(asked.plan, asked.cluster);
  return asked;
}

SmallPlan Wide(int64_t ranks, int zero_stage) {
  return {.layers = 6,
          .hidden = 1024,
          .heads = 16,
          .vocab = 5000,
          .positions = 512,
          .sequence = 512,
          .micro = 2,
          .micro_batches = 4,
          .ranks = ranks,
          .zero_stage = zero_stage,
          .bf16 = true};
}

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Stage 3 over PCIe gathers every layer twice in every micro-batch.
TEST(AdviceOn, PRF_01_Stage3OverPcieWaitsForWeights) {
  const Asked asked = Ask(Wide(8, 3), "a100-pcie-hdr", 1, 8);
  const std::vector<std::string> advice = asked.Advice(80);
  ASSERT_EQ(1U, advice.size());
  EXPECT_TRUE(Contains(advice[0], "fits too, with")) << advice[0];
  EXPECT_TRUE(Contains(advice[0], "% of this one wait for weights")) << advice[0];
  Layout layout = LayoutOf(asked.job.config);
  for (layout.zero_stage = 0; layout.zero_stage < 3; ++layout.zero_stage) {
    if (!Contains(advice[0], "stage " + std::to_string(layout.zero_stage) + " fits")) continue;
    const Plan lower = *PlanOf(asked.job, WithLayout(asked.job.config, layout));
    EXPECT_LT(Predict(lower, asked.cluster).step_seconds, 0.95 * asked.prediction->step_seconds);
  }
  // What the lower stages do not fit is left alone.
  EXPECT_TRUE(asked.Advice(0.27).empty()) << asked.Advice(0.27)[0];
}

// Without a cluster by what is sent; a stage that sends no more than a lower one says nothing.
TEST(AdviceOn, PRF_07_AStageThatIsNotNeeded) {
  const std::vector<std::string> advice = Ask(Wide(4, 3), "a100-pcie-hdr", 1, 4).Advice(80, /*with_cluster=*/false);
  ASSERT_EQ(1U, advice.size());
  EXPECT_TRUE(Contains(advice[0], "and a rank sends")) << advice[0];
  EXPECT_TRUE(Ask(Wide(4, 1), "a100-pcie-hdr", 1, 4).Advice(80, false).empty());
  EXPECT_TRUE(Ask(Wide(4, 1), "a100-nvswitch-hdr", 1, 4).Advice(80).empty());
}

// Over Ethernet of 10 Gb/s two nodes take longer than one for the same batch.
TEST(AdviceOn, PRF_02_TwoNodesSlowerThanOne) {
  SmallPlan small = Wide(8, 1);
  small.micro_batches = 1;
  Asked asked = Ask(small, "a100-nvswitch-hdr", 2, 4);
  EXPECT_TRUE(asked.Advice(80).empty()) << "HDR ports are fast enough";
  asked.cluster.network.port.all.bytes_per_second = 1.25e9;
  asked.cluster.network.ports_per_node = 1;
  asked.prediction = Predict(asked.plan, asked.cluster);
  const std::vector<std::string> advice = asked.Advice(80);
  ASSERT_EQ(1U, advice.size());
  EXPECT_TRUE(Contains(advice[0], "one node alone takes")) << advice[0];
}

}  // namespace
}  // namespace trireme
