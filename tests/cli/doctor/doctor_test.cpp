// `trireme doctor` on the machine that runs the tests.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "parsers/cluster.h"
#include "tests/cli/launcher/command.h"

namespace trireme::testing {
namespace {

TEST(DoctorCommand, ReportsThisMachineAsJson) {
  const TempFolder folder;
  const Outcome outcome = RunTrireme({"doctor", "--json", "--nvme_path", folder.path().string()});
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(outcome.code, report["problems"] == 0 ? 0 : 1) << outcome.out;
  EXPECT_EQ(report["ok"], report["problems"] == 0);
  std::set<std::string> topics;
  for (const auto& finding : report["findings"]) {
    topics.insert(finding["topic"].get<std::string>());
    EXPECT_NE(finding["what"], "");
    if (finding["status"] != "ok") {
      EXPECT_NE(finding["fix"], "") << finding;
    }
  }
  for (const char* topic : {"cpu", "memory", "shared memory", "limits", "clock", "network", "disk", "engine", "cuda"})
    EXPECT_TRUE(topics.count(topic)) << topic << " is not in\n" << outcome.out;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(DoctorCommand, AProblemIsExitCodeOne) {
  const Outcome outcome = RunTrireme({"doctor", "--nvme_path", "/nowhere/at/all"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("problem  disk"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("fix: make the folder"), std::string::npos) << outcome.out;
}

TEST(DoctorCommand, CalibratesThisMachineAndPlanReadsIt) {
  const TempFolder folder;
  const std::string file = folder.path() / "machine.json";
  const Outcome outcome = RunTrireme(
      {"doctor", "--calibrate", "--quick", "--device", "cpu", "--nvme-path", folder.path().string(), "--out", file});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("engine factor"), std::string::npos) << outcome.out;
  const Cluster cluster = ReadClusterFile(file);
  EXPECT_EQ(cluster.device.kind, DeviceKind::kCpu);
  EXPECT_EQ(cluster.num_devices(), 1);
  EXPECT_NE(cluster.source.find("measured by trireme doctor"), std::string::npos);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    ASSERT_TRUE(cluster.device.rates.count(dtype));
    const ComputeRates& rates = cluster.device.rates.at(dtype);
    EXPECT_GT(rates.products, 0);
    EXPECT_GT(rates.attention_forward, 0);
    EXPECT_GT(rates.attention_backward, 0);
  }
  EXPECT_EQ(cluster.device.products.size(), 30U);  // five matrices, three roles, two types
  EXPECT_GT(cluster.device.memory_bytes_per_second, 0);
  EXPECT_GT(cluster.device.engine_factor, 0);
  for (const auto& rate : {cluster.node_link.all_reduce, cluster.node_link.reduce_scatter, cluster.node_link.all_gather,
                           cluster.node_link.transfer}) {
    ASSERT_TRUE(rate.has_value());
    EXPECT_GT(rate->bytes_per_second, 0);
  }
  EXPECT_GT(cluster.host_link.up_bytes_per_second, 0);
  EXPECT_GT(cluster.host.cores, 0);
  EXPECT_GT(cluster.host.MemoryBytesPerSecond(), 0);
  EXPECT_GT(cluster.disk.write_bytes_per_second, 0);
  EXPECT_GT(cluster.disk.read_bytes_per_second, 0);
  const std::string config = folder.path() / "ds_config.json";
  std::ofstream(config) << R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})";
  const Outcome plan = RunTrireme({"plan", config, "--num-layers", "2", "--hidden-size", "128", "--num-attention-heads",
                                   "2", "--num_gpus", "2", "--cluster", file});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_NE(plan.out.find("a step takes"), std::string::npos) << plan.out;
}

}  // namespace
}  // namespace trireme::testing
