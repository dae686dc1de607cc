#include "parsers/cluster.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/strings.h"
#include "parsers/section_reader.h"

namespace trireme {
namespace {

constexpr SectionKind kStrict = SectionKind::kArguments;  // unknown keys are errors

void Need(SectionReader& in, const std::string& key) {
  if (in.Has(key)) return;
  in.diagnostics().Error("CLU002", in.Here(), in.Path(key), "is missing", "write it (docs/clusters.md shows a file)");
}

void Rate(SectionReader& in, const std::string& key, double& value) { in.Read(key, value, Above(0)); }
void NeededRate(SectionReader& in, const std::string& key, double& value) {
  Need(in, key);
  if (in.Has(key)) Rate(in, key, value);
}
void OptionalRate(SectionReader& in, const std::string& key, double& value) { in.Read(key, value, AtLeast(0)); }
void Count(SectionReader& in, const std::string& key, int64_t& value, double least = 1) {
  in.Read(key, value, Between(least, 1e15));
}
void NeededCount(SectionReader& in, const std::string& key, int64_t& value) {
  Need(in, key);
  if (in.Has(key)) Count(in, key, value);
}

// Calls read(reader) for each object of a list.
template <typename ReadElement>
void List(SectionReader& in, ReaderContext& context, const std::string& key, ReadElement read) {
  const JsonValue* list = in.Take(key);
  if (list == nullptr) return;
  for (size_t i = 0; i < list->elements.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", in.Path(key), i);
    if (list->elements[i].kind == JsonValue::Kind::kObject) {
      SectionReader element(context, &list->elements[i], path, kStrict);
      read(element);
      element.RejectUnread();
      continue;
    }
    in.diagnostics().Error("CLU003", in.At(key), path, fmt::format("{} is no object", Describe(list->elements[i])),
                           "write { ... } with its keys");
  }
  if (list->kind != JsonValue::Kind::kArray) {
    in.diagnostics().Error("CLU003", in.At(key), in.Path(key), fmt::format("{} is no list", Describe(*list)),
                           "write [ ... ] around its objects");
  }
}

std::optional<DType> TypeNamed(SectionReader& in, const std::string& key, const std::string& name) {
  const std::optional<DType> dtype = ParseDType(name);
  if (dtype) return dtype;
  in.diagnostics().Error("CLU003", in.At(key), in.Path(key), fmt::format("{} is no data type", Quoted(name)),
                         "write bf16, fp16, fp32 or fp64");
  return std::nullopt;
}

ComputeRates ReadRates(SectionReader in) {
  ComputeRates rates;
  NeededRate(in, "products", rates.products);
  OptionalRate(in, "attention_forward", rates.attention_forward);
  OptionalRate(in, "attention_backward", rates.attention_backward);
  OptionalRate(in, "peak", rates.peak);
  in.RejectUnread();
  return rates;
}

void ReadAllRates(SectionReader& device, DeviceDescription& into) {
  Need(device, "rates");
  SectionReader in = device.Section("rates", kStrict);
  if (!in.Exists()) return;
  for (const char* name : {"bf16", "fp16", "fp32", "fp64"}) {
    if (in.Has(name)) into.rates[*ParseDType(name)] = ReadRates(in.Section(name, kStrict));
    in.Know(name);
  }
  in.RejectUnread();
  if (into.rates.empty()) {
    in.diagnostics().Error("CLU003", in.Here(), "device.rates", "names no data type",
                           "give at least one of bf16, fp16, fp32 and fp64");
  }
}

void ReadKind(SectionReader& in, DeviceDescription& device) {
  std::string kind = "cuda";
  in.Read("kind", kind);
  device.kind = kind == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda;
  if (kind == "cpu" || kind == "cuda") return;
  in.diagnostics().Error("CLU003", in.At("kind"), in.Path("kind"), fmt::format("{} is no kind of device", Quoted(kind)),
                         "write \"cuda\" or \"cpu\"");
}

DeviceDescription ReadDevice(SectionReader in, ReaderContext& context) {
  DeviceDescription device;
  Need(in, "name");
  in.Read("name", device.name);
  ReadKind(in, device);
  Count(in, "memory_bytes", device.memory_bytes, 0);
  Count(in, "multiprocessors", device.multiprocessors, 0);
  OptionalRate(in, "memory_bytes_per_second", device.memory_bytes_per_second);
  OptionalRate(in, "update_bytes_per_second", device.update_bytes_per_second);
  OptionalRate(in, "kernel_seconds", device.kernel_seconds);
  in.Read("engine_factor", device.engine_factor, Between(0.1, 100));
  OptionalRate(in, "communication_slowdown", device.communication_slowdown);
  OptionalRate(in, "step_seconds", device.step_seconds);
  ReadAllRates(in, device);
  List(in, context, "products", [&](SectionReader& element) {
    MeasuredProduct product;
    std::string dtype = "bf16";
    element.Read("dtype", dtype);
    product.dtype = TypeNamed(element, "dtype", dtype).value_or(product.dtype);
    NeededCount(element, "m", product.m);
    NeededCount(element, "n", product.n);
    NeededCount(element, "k", product.k);
    NeededRate(element, "flops_per_second", product.flops_per_second);
    device.products.push_back(product);
  });
  List(in, context, "split_efficiency", [&](SectionReader& element) {
    SplitEfficiency split;
    NeededCount(element, "ranks", split.ranks);
    Need(element, "share");
    element.Read("share", split.share, {.low = 0, .high = 1, .open_low = true});
    device.split_efficiency.push_back(split);
  });
  in.RejectUnread();
  return device;
}

void ReadRate(SectionReader& in, LinkRate& rate) {
  NeededRate(in, "bytes_per_second", rate.bytes_per_second);
  OptionalRate(in, "half_size_bytes", rate.half_size_bytes);
  OptionalRate(in, "latency_seconds", rate.latency_seconds);
  OptionalRate(in, "rank_seconds", rate.rank_seconds);
}

void ReadLink(SectionReader& in, LinkDescription& link) {
  if (!in.Exists()) return;
  ReadRate(in, link.all);
  const auto operation = [&](const char* key, std::optional<LinkRate>& rate) {
    SectionReader own = in.Section(key, kStrict);
    if (!own.Exists()) return;
    ReadRate(own, rate.emplace());
    own.RejectUnread();
  };
  operation("all_reduce", link.all_reduce);
  operation("reduce_scatter", link.reduce_scatter);
  operation("all_gather", link.all_gather);
  operation("transfer", link.transfer);
}

void ReadLinks(SectionReader& root, Cluster& cluster) {
  SectionReader node = root.Section("node_link", kStrict), pair = root.Section("pair_link", kStrict),
                network = root.Section("network", kStrict), host = root.Section("host_link", kStrict);
  ReadLink(node, cluster.node_link);
  node.RejectUnread();
  if (pair.Exists()) ReadLink(pair, cluster.pair_link.emplace());
  pair.RejectUnread();
  ReadLink(network, cluster.network.port);
  Count(network, "ports_per_node", cluster.network.ports_per_node);
  network.Read("hierarchical", cluster.network.hierarchical);
  network.RejectUnread();
  if (host.Exists()) {
    HostLinkDescription& link = cluster.host_link;
    NeededRate(host, "up_bytes_per_second", link.up_bytes_per_second);
    NeededRate(host, "down_bytes_per_second", link.down_bytes_per_second);
    OptionalRate(host, "up_duplex_bytes_per_second", link.up_duplex_bytes_per_second);
    OptionalRate(host, "down_duplex_bytes_per_second", link.down_duplex_bytes_per_second);
    OptionalRate(host, "latency_seconds", link.latency_seconds);
  }
  host.RejectUnread();
}

void ReadHosts(SectionReader& root, ReaderContext& context, Cluster& cluster) {
  SectionReader host = root.Section("host", kStrict), disk = root.Section("disk", kStrict),
                overlap = root.Section("overlap", kStrict);
  Count(host, "memory_bytes", cluster.host.memory_bytes, 0);
  Count(host, "cores", cluster.host.cores, 0);
  OptionalRate(host, "update_bytes_per_second", cluster.host.update_bytes_per_second);
  List(host, context, "memory", [&](SectionReader& element) {
    MemoryRate rate;
    NeededCount(element, "threads", rate.threads);
    NeededRate(element, "bytes_per_second", rate.bytes_per_second);
    cluster.host.memory.push_back(rate);
  });
  host.RejectUnread();
  OptionalRate(disk, "read_bytes_per_second", cluster.disk.read_bytes_per_second);
  OptionalRate(disk, "write_bytes_per_second", cluster.disk.write_bytes_per_second);
  disk.RejectUnread();
  overlap.Read("data_parallel", cluster.overlap.data_parallel, Between(0, 1));
  overlap.Read("tensor_parallel", cluster.overlap.tensor_parallel, Between(0, 1));
  overlap.Read("pipeline", cluster.overlap.pipeline, Between(0, 1));
  overlap.RejectUnread();
}

// Links that the described machine must have.
void CheckLinks(SectionReader& root, const Cluster& cluster) {
  if (cluster.devices_per_node > 1) Need(root, "node_link");
  if (cluster.nodes > 1) Need(root, "network");
}

}  // namespace

const ComputeRates& DeviceDescription::RatesOf(DType dtype) const {
  TRIREME_CHECK(!rates.empty(), "a device has rates");
  const auto find = [&](std::initializer_list<DType> types) {
    for (const DType type : types) {
      if (const auto it = rates.find(type); it != rates.end()) return it;
    }
    return rates.begin();
  };
  switch (dtype) {
    case DType::kBFloat16:
      return find({DType::kBFloat16, DType::kFloat16, DType::kFloat32})->second;
    case DType::kFloat16:
      return find({DType::kFloat16, DType::kBFloat16, DType::kFloat32})->second;
    case DType::kFloat64:
      return find({DType::kFloat64, DType::kFloat32})->second;
    default:
      return find({DType::kFloat32, DType::kFloat64})->second;
  }
}

double HostDescription::MemoryBytesPerSecond() const {
  double best = 0;
  for (const MemoryRate& rate : memory) best = std::max(best, rate.bytes_per_second);
  return best;
}

Cluster ReadClusterText(std::string_view text, const std::string& file, Diagnostics& diagnostics) {
  Cluster cluster;
  const std::optional<JsonValue> json = ReadJson(text, file, diagnostics);
  if (!json) return cluster;
  if (json->kind != JsonValue::Kind::kObject) {
    diagnostics.Error("CLU003", {file, json->line, json->column}, "",
                      fmt::format("the file holds {}, and a cluster is an object", Describe(*json)),
                      "write { ... } around its keys");
    return cluster;
  }
  std::vector<Origin> origins;
  ReaderContext context{file, diagnostics, origins};
  SectionReader root(context, &*json, "", kStrict);
  Need(root, "name");
  root.Read("name", cluster.name);
  Need(root, "source");
  root.Read("source", cluster.source);
  NeededCount(root, "nodes", cluster.nodes);
  NeededCount(root, "devices_per_node", cluster.devices_per_node);
  Need(root, "device");
  cluster.device = ReadDevice(root.Section("device", kStrict), context);
  ReadLinks(root, cluster);
  ReadHosts(root, context, cluster);
  CheckLinks(root, cluster);
  root.RejectUnread();
  diagnostics.SortByPosition();
  return cluster;
}

Cluster ReadClusterFile(const std::filesystem::path& path) {
  std::string text;
  try {
    text = ReadFile(path, ErrorCode::kConfig);
  } catch (const Error& error) {
    throw Error(ErrorCode::kConfig, "CLU001", error.message(), path.string(),
                fmt::format("give the path of a description, or a name: {}", Join(ClusterNames(), ", ")));
  }
  Diagnostics diagnostics;
  Cluster cluster = ReadClusterText(text, path.string(), diagnostics);
  diagnostics.ThrowIfErrors();
  return cluster;
}

}  // namespace trireme
