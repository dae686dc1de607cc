// What a program runs on, in numbers: nodes, devices, links, hosts and disks, as configs/clusters/*.json describe them
// and as a calibration writes them. The cost model of engine/schedule reads nothing else about hardware.
//   Cluster cluster = FindCluster("a100-pcie-hdr");  // or a path; throws Error{kConfig, CLU00x} with every problem
//
// The file is one JSON object. Sizes in bytes, times in seconds, rates per second. Keys marked * must be there; what
// else is absent has the default that the structs below show, and most defaults mean "costs nothing" or "not known":
//   {
//     "name": "pair", *
//     "source": "where the figures come from", *
//     "nodes": 1, *  "devices_per_node": 2, *
//     "device": { *
//       "name": "NVIDIA H200", *  "kind": "cuda" | "cpu", *
//       "memory_bytes": 150.7e9, "multiprocessors": 132, "memory_bytes_per_second": 4.3e12,
//       "update_bytes_per_second": 4.1e12,
//       "kernel_seconds": 5e-6, "engine_factor": 1.2, "communication_slowdown": 0.05, "step_seconds": 1e-3,
//       "rates": { *  by data type, at least one
//         "bf16": {"products": 790e12, *  "attention_forward": 480e12, "attention_backward": 390e12, "peak": 989e12}},
//       "products": [{"dtype": "bf16", "m": 2048, "n": 5120, "k": 5120, "flops_per_second": 7e14}],
//       "split_efficiency": [{"ranks": 8, "share": 0.81}]},
//     "node_link": {"bytes_per_second": 360e9, *  "half_size_bytes": 17e6, "latency_seconds": 15e-6,
//       "rank_seconds": 0, "all_reduce": {the same four}, "reduce_scatter": {}, "all_gather": {}, "transfer": {}},
//     "pair_link": {as node_link},
//     "network": {as node_link, and "ports_per_node": 8, "hierarchical": true},
//     "host_link": {"up_bytes_per_second": 55e9, *  "down_bytes_per_second": 55e9, *
//       "up_duplex_bytes_per_second": 0, "down_duplex_bytes_per_second": 0, "latency_seconds": 1e-5},
//     "host": {"memory_bytes": 1e12, "cores": 96, "memory": [{"threads": 16, "bytes_per_second": 2.5e11}],
//       "update_bytes_per_second": 2.3e11},
//     "disk": {"read_bytes_per_second": 7e9, "write_bytes_per_second": 3e9},
//     "overlap": {"data_parallel": 1, "tensor_parallel": 0.9, "pipeline": 1}
//   }
// A cluster of CPUs: kind "cpu", devices_per_node 1, rates of all cores together; ranks that share a device share its
// rates. node_link is then what carries collectives between processes of one machine, each operation measured.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/dtype.h"
#include "parsers/diagnostics.h"

namespace trireme {

// FLOP/s, of one device that computes in one type.
struct ComputeRates {
  double products = 0;            // matrix products of the best shape, long enough for the power limit to show
  double attention_forward = 0;   // of causal attention's useful operations; 0: as products
  double attention_backward = 0;  // 0: as attention_forward
  double peak = 0;                // what the maker names (MFU is a share of it); 0: as products
  bool operator==(const ComputeRates&) const = default;
};

// C[m, n] = A[m, k] B[k, n]. A product of the model takes the rate of the nearest one, or without any that of the tiles
// it fills (engine/schedule/cost_model.h).
struct MeasuredProduct {
  DType dtype = DType::kBFloat16;
  int64_t m = 0, n = 0, k = 0;
  double flops_per_second = 0;
  bool operator==(const MeasuredProduct&) const = default;
};

// What is left of the rate of products that `ranks` tensor-parallel ranks split.
struct SplitEfficiency {
  int64_t ranks = 1;
  double share = 1;
  bool operator==(const SplitEfficiency&) const = default;
};

enum class DeviceKind : uint8_t { kCuda, kCpu };

struct DeviceDescription {
  std::string name;
  DeviceKind kind = DeviceKind::kCuda;
  int64_t memory_bytes = 0;     // as the device reports it; 0: not known, nothing is compared
  int64_t multiprocessors = 0;  // 0: products of every shape reach their rate
  std::map<DType, ComputeRates> rates;
  std::vector<MeasuredProduct> products;
  std::vector<SplitEfficiency> split_efficiency;
  double memory_bytes_per_second = 0;  // read and written, of a fused element-wise kernel; 0: it takes no time
  double update_bytes_per_second = 0;  // the same of an optimizer's update; 0: as memory_bytes_per_second
  double kernel_seconds = 0;           // from one kernel to the next
  double engine_factor = 1;            // by how much real compute is longer than all of the above; fitted
  double communication_slowdown = 0;   // of compute, while collectives of other lanes run
  double step_seconds = 0;             // fixed, once a step
  bool operator==(const DeviceDescription&) const = default;

  // Of a type that the device has no rates for, those of the nearest type that it has (fp16 for bf16, fp32 else).
  const ComputeRates& RatesOf(DType dtype) const;
};

// Time of S bytes that one rank sends: latency + (S + half_size) / bytes_per_second; of a ring of k ranks (k - 2) times
// rank_seconds more. S is 2 (k - 1) / k of the tensor for an all-reduce, (k - 1) / k for a reduce-scatter or
// all-gather.
struct LinkRate {
  double bytes_per_second = 0;
  double half_size_bytes = 0;  // at which half the rate is reached
  double latency_seconds = 0;
  double rank_seconds = 0;
  bool operator==(const LinkRate&) const = default;
};

// One rate for all operations, and those of single ones that differ.
struct LinkDescription {
  LinkRate all;
  std::optional<LinkRate> all_reduce, reduce_scatter, all_gather, transfer;
  bool operator==(const LinkDescription&) const = default;
};

struct NetworkDescription {
  LinkDescription port;  // of one port
  // Shared evenly by the devices of a node: n ranks on a node of d devices reach n / d of them, at least one.
  int64_t ports_per_node = 1;
  bool hierarchical = true;  // collectives may go in two levels, within nodes and between them; else in one ring
  bool operator==(const NetworkDescription&) const = default;
};

// Between a device and its host, for each device alone.
struct HostLinkDescription {
  double up_bytes_per_second = 0, down_bytes_per_second = 0;                // host to device, device to host
  double up_duplex_bytes_per_second = 0, down_duplex_bytes_per_second = 0;  // each while both run; 0: as alone
  double latency_seconds = 0;
  bool operator==(const HostLinkDescription&) const = default;
};

struct MemoryRate {  // of a triad: bytes read and written
  int64_t threads = 1;
  double bytes_per_second = 0;
  bool operator==(const MemoryRate&) const = default;
};

struct HostDescription {
  int64_t memory_bytes = 0;  // of a node; 0: not known
  int64_t cores = 0;
  std::vector<MemoryRate> memory;
  double update_bytes_per_second = 0;  // of an update there, on all cores; 0: as the best of `memory`
  // The best of `memory`; 0: not known.
  double MemoryBytesPerSecond() const;
  bool operator==(const HostDescription&) const = default;
};

struct DiskDescription {  // of a node
  double read_bytes_per_second = 0, write_bytes_per_second = 0;
  bool operator==(const DiskDescription&) const = default;
};

// Share of its speed that compute keeps while communication of a kind runs beside it: 1 at its side, 0 one after the
// other. tensor_parallel: of a hidden collective inside a unit the share of the products beside it that can hide it.
struct OverlapDescription {
  double data_parallel = 1, tensor_parallel = 0.9, pipeline = 1;
  bool operator==(const OverlapDescription&) const = default;
};

struct Cluster {
  std::string name, source;
  int64_t nodes = 1, devices_per_node = 1;
  DeviceDescription device;
  LinkDescription node_link;
  std::optional<LinkDescription> pair_link;  // between devices 2 i and 2 i + 1, where bridges join them
  NetworkDescription network;
  HostLinkDescription host_link;
  HostDescription host;
  DiskDescription disk;
  OverlapDescription overlap;
  bool operator==(const Cluster&) const = default;

  int64_t num_devices() const { return nodes * devices_per_node; }
};

// Problems go to `diagnostics`, all at once; unknown keys are errors. The result is complete if there are none.
Cluster ReadClusterText(std::string_view text, const std::string& file, Diagnostics& diagnostics);
// Throws Error{kConfig, CLU001} where there is no such file, else the first problem's id with all of them in the text.
Cluster ReadClusterFile(const std::filesystem::path& path);

// The descriptions of configs/clusters, which the library carries, by name ("a100-pcie-hdr").
std::vector<std::string> ClusterNames();
// A name of these, else a path.
Cluster FindCluster(const std::string& name_or_path);

// The text that ReadClusterText reads back to an equal Cluster, indented.
std::string ClusterToJson(const Cluster& cluster);

}  // namespace trireme
