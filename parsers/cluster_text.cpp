// Descriptions that the library carries, and the text of one.
#include <nlohmann/json.hpp>

#include "parsers/cluster.h"
#include "parsers/shipped_clusters_generated.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;

// Of a value that is not its default.
template <typename T>
void Put(Json& out, const char* key, const T& value, const T& absent) {
  if (value != absent) out[key] = value;
}

Json RateJson(const LinkRate& rate) {
  Json out;
  out["bytes_per_second"] = rate.bytes_per_second;
  Put(out, "half_size_bytes", rate.half_size_bytes, 0.0);
  Put(out, "latency_seconds", rate.latency_seconds, 0.0);
  Put(out, "rank_seconds", rate.rank_seconds, 0.0);
  return out;
}

Json LinkJson(const LinkDescription& link) {
  Json out = RateJson(link.all);
  if (link.all_reduce) out["all_reduce"] = RateJson(*link.all_reduce);
  if (link.reduce_scatter) out["reduce_scatter"] = RateJson(*link.reduce_scatter);
  if (link.all_gather) out["all_gather"] = RateJson(*link.all_gather);
  if (link.transfer) out["transfer"] = RateJson(*link.transfer);
  return out;
}

Json DeviceJson(const DeviceDescription& device) {
  const DeviceDescription absent;
  Json out;
  out["name"] = device.name;
  out["kind"] = device.kind == DeviceKind::kCpu ? "cpu" : "cuda";
  Put(out, "memory_bytes", device.memory_bytes, absent.memory_bytes);
  Put(out, "multiprocessors", device.multiprocessors, absent.multiprocessors);
  Put(out, "memory_bytes_per_second", device.memory_bytes_per_second, absent.memory_bytes_per_second);
  Put(out, "update_bytes_per_second", device.update_bytes_per_second, absent.update_bytes_per_second);
  Put(out, "kernel_seconds", device.kernel_seconds, absent.kernel_seconds);
  Put(out, "engine_factor", device.engine_factor, absent.engine_factor);
  Put(out, "communication_slowdown", device.communication_slowdown, absent.communication_slowdown);
  Put(out, "step_seconds", device.step_seconds, absent.step_seconds);
  for (const auto& [dtype, rates] : device.rates) {
    Json& of = out["rates"][std::string(Name(dtype))];
    of["products"] = rates.products;
    Put(of, "attention_forward", rates.attention_forward, 0.0);
    Put(of, "attention_backward", rates.attention_backward, 0.0);
    Put(of, "peak", rates.peak, 0.0);
  }
  for (const MeasuredProduct& product : device.products) {
    out["products"].push_back({{"dtype", std::string(Name(product.dtype))},
                               {"m", product.m},
                               {"n", product.n},
                               {"k", product.k},
                               {"flops_per_second", product.flops_per_second}});
  }
  for (const SplitEfficiency& split : device.split_efficiency) {
    out["split_efficiency"].push_back({{"ranks", split.ranks}, {"share", split.share}});
  }
  return out;
}

Json HostLinkJson(const HostLinkDescription& link) {
  Json out;
  out["up_bytes_per_second"] = link.up_bytes_per_second;
  out["down_bytes_per_second"] = link.down_bytes_per_second;
  Put(out, "up_duplex_bytes_per_second", link.up_duplex_bytes_per_second, 0.0);
  Put(out, "down_duplex_bytes_per_second", link.down_duplex_bytes_per_second, 0.0);
  Put(out, "latency_seconds", link.latency_seconds, 0.0);
  return out;
}

Json HostJson(const HostDescription& host) {
  Json out = Json::object();
  Put(out, "memory_bytes", host.memory_bytes, int64_t{0});
  Put(out, "cores", host.cores, int64_t{0});
  Put(out, "update_bytes_per_second", host.update_bytes_per_second, 0.0);
  for (const MemoryRate& rate : host.memory) {
    out["memory"].push_back({{"threads", rate.threads}, {"bytes_per_second", rate.bytes_per_second}});
  }
  return out;
}

void PutLinks(const Cluster& cluster, Json& out) {
  const auto known = [](const LinkDescription& link) { return link.all.bytes_per_second > 0; };
  if (known(cluster.node_link)) out["node_link"] = LinkJson(cluster.node_link);
  if (cluster.pair_link) out["pair_link"] = LinkJson(*cluster.pair_link);
  if (known(cluster.network.port)) {
    out["network"] = LinkJson(cluster.network.port);
    Put(out["network"], "ports_per_node", cluster.network.ports_per_node, int64_t{1});
    Put(out["network"], "hierarchical", cluster.network.hierarchical, true);
  }
  if (cluster.host_link.up_bytes_per_second > 0) out["host_link"] = HostLinkJson(cluster.host_link);
}

}  // namespace

std::string ClusterToJson(const Cluster& cluster) {
  Json out;
  out["name"] = cluster.name;
  out["source"] = cluster.source;
  out["nodes"] = cluster.nodes;
  out["devices_per_node"] = cluster.devices_per_node;
  out["device"] = DeviceJson(cluster.device);
  PutLinks(cluster, out);
  if (cluster.host != HostDescription{}) out["host"] = HostJson(cluster.host);
  if (cluster.disk != DiskDescription{}) {
    Put(out["disk"], "read_bytes_per_second", cluster.disk.read_bytes_per_second, 0.0);
    Put(out["disk"], "write_bytes_per_second", cluster.disk.write_bytes_per_second, 0.0);
  }
  if (cluster.overlap != OverlapDescription{}) {
    out["overlap"] = {{"data_parallel", cluster.overlap.data_parallel},
                      {"tensor_parallel", cluster.overlap.tensor_parallel},
                      {"pipeline", cluster.overlap.pipeline}};
  }
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::vector<std::string> ClusterNames() {
  std::vector<std::string> names;
  for (const auto& [name, text] : kShippedClusters) names.emplace_back(name);
  return names;
}

Cluster FindCluster(const std::string& name_or_path) {
  for (const auto& [name, text] : kShippedClusters) {
    if (name != name_or_path) continue;
    Diagnostics diagnostics;
    Cluster cluster = ReadClusterText(text, std::string(name), diagnostics);
    diagnostics.ThrowIfErrors();
    return cluster;
  }
  return ReadClusterFile(name_or_path);
}

}  // namespace trireme
