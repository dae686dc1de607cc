// Descriptions of machines: what they say, and what is wrong with one, all at once.
#include "parsers/cluster.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"

namespace trireme {
namespace {

constexpr const char* kWhole = R"({
  "name": "pair", "source": "a test", "nodes": 2, "devices_per_node": 4,
  "device": {
    "name": "D", "kind": "cuda", "memory_bytes": 8e10, "multiprocessors": 108, "memory_bytes_per_second": 1.5e12,
    "update_bytes_per_second": 1.4e12, "kernel_seconds": 5e-6, "engine_factor": 1.2, "communication_slowdown": 0.05, "step_seconds": 1e-3,
    "rates": {"bf16": {"products": 2e14, "attention_forward": 1.5e14, "attention_backward": 1.2e14, "peak": 3e14},
              "fp32": {"products": 1e14}},
    "products": [{"dtype": "bf16", "m": 2048, "n": 1024, "k": 512, "flops_per_second": 1.9e14}],
    "split_efficiency": [{"ranks": 4, "share": 0.9}]},
  "node_link": {"bytes_per_second": 2e11, "half_size_bytes": 8e6, "latency_seconds": 1e-5, "rank_seconds": 1e-6,
                "all_reduce": {"bytes_per_second": 3e11}, "transfer": {"bytes_per_second": 2.5e11}},
  "pair_link": {"bytes_per_second": 4e11},
  "network": {"bytes_per_second": 2e10, "ports_per_node": 2, "hierarchical": false},
  "host_link": {"up_bytes_per_second": 5e10, "down_bytes_per_second": 4e10, "up_duplex_bytes_per_second": 3e10,
                "down_duplex_bytes_per_second": 2.5e10, "latency_seconds": 1e-5},
  "host": {"memory_bytes": 1e12, "cores": 64, "update_bytes_per_second": 1.7e11, "memory": [{"threads": 1, "bytes_per_second": 2e10},
                                                          {"threads": 32, "bytes_per_second": 2e11}]},
  "disk": {"read_bytes_per_second": 7e9, "write_bytes_per_second": 3e9},
  "overlap": {"data_parallel": 0.9, "tensor_parallel": 0.5, "pipeline": 1}
})";

Cluster Read(const std::string& text, Diagnostics& diagnostics) { return ReadClusterText(text, "c.json", diagnostics); }

TEST(Cluster, HoldsWhatTheFileSays) {
  Diagnostics diagnostics;
  const Cluster cluster = Read(kWhole, diagnostics);
  ASSERT_FALSE(diagnostics.HasErrors()) << diagnostics.Render();
  EXPECT_EQ(8, cluster.num_devices());
  EXPECT_EQ(80'000'000'000, cluster.device.memory_bytes);
  EXPECT_EQ(2e14, cluster.device.RatesOf(DType::kFloat16).products);  // the nearest type that it has
  EXPECT_EQ(1e14, cluster.device.RatesOf(DType::kFloat64).products);
  ASSERT_EQ(1U, cluster.device.products.size());
  EXPECT_EQ(512, cluster.device.products[0].k);
  EXPECT_EQ(3e11, cluster.node_link.all_reduce->bytes_per_second);
  EXPECT_FALSE(cluster.node_link.all_gather);
  EXPECT_EQ(4e11, cluster.pair_link->all.bytes_per_second);
  EXPECT_FALSE(cluster.network.hierarchical);
  EXPECT_EQ(2e11, cluster.host.MemoryBytesPerSecond());
  EXPECT_EQ(0.5, cluster.overlap.tensor_parallel);
}

TEST(Cluster, TextReadsBackEqual) {
  std::vector<Cluster> clusters;
  Diagnostics diagnostics;
  clusters.push_back(Read(kWhole, diagnostics));
  for (const std::string& name : ClusterNames()) clusters.push_back(FindCluster(name));
  ASSERT_GE(clusters.size(), 5U);
  for (const Cluster& cluster : clusters) {
    EXPECT_EQ(cluster, Read(ClusterToJson(cluster), diagnostics)) << cluster.name;
    EXPECT_FALSE(diagnostics.HasErrors()) << diagnostics.Render();
  }
}

// Seven mistakes, seven findings, with their lines.
TEST(Cluster, EveryProblemIsReportedAtOnce) {
  Diagnostics diagnostics;
  Read(R"({
    "name": "x", "nodes": 1, "devices_per_node": 2,
    "device": {"name": "D", "kind": "tpu", "memry_bytes": 1,
      "rates": {"bf16": {"products": -1}, "fp8": {"products": 1}}},
    "overlap": {"data_parallel": 2},
    "host": {"memory": 3}
  })",
       diagnostics);
  const std::string text = diagnostics.Render();
  for (const char* wanted : {"source: is missing", "device.kind", "memry_bytes", "device.rates.bf16.products",
                             "device.rates.fp8", "overlap.data_parallel", "host.memory", "node_link: is missing"}) {
    EXPECT_NE(std::string::npos, text.find(wanted)) << wanted << "\n" << text;
  }
  EXPECT_EQ(8, diagnostics.num_errors()) << text;
}

TEST(Cluster, WhatIsNotThereIsNamed) {
  try {
    FindCluster("a100-pcie");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ("CLU001", error.id());
    EXPECT_NE(std::string::npos, error.fix().find("a100-pcie-hdr"));
  }
}

}  // namespace
}  // namespace trireme
