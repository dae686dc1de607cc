#include "engine/schedule/placement.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <vector>

#include "engine/base/error.h"

namespace trireme {
namespace {

const LinkRate& RateOf(const LinkDescription& link, Collective collective) {
  const std::optional<LinkRate>& own = collective == Collective::kAllReduce       ? link.all_reduce
                                       : collective == Collective::kReduceScatter ? link.reduce_scatter
                                                                                  : link.all_gather;
  return own ? *own : link.all;
}

const LinkRate& TransferRate(const LinkDescription& link) { return link.transfer ? *link.transfer : link.all; }

double Seconds(const LinkRate& rate, double sent, int64_t ranks) {
  return rate.latency_seconds + rate.rank_seconds * static_cast<double>(ranks - 2) +
         (sent + rate.half_size_bytes) / rate.bytes_per_second;
}

// What each of `ranks` sends of a tensor, by ring algorithms.
double SentBytes(Collective collective, double bytes, int64_t ranks) {
  const double k = static_cast<double>(ranks);
  return (collective == Collective::kAllReduce ? 2 : 1) * (k - 1) / k * bytes;
}

std::vector<int64_t> Members(const Plan& plan, Group group, int64_t rank) {
  const Topology& topology = plan.topology;
  Topology::Coordinate at = topology.CoordinateOf(static_cast<int>(rank));
  std::vector<int64_t> members;
  if (group == Group::kTie) {
    for (const int pp_rank : {plan.PpRankOf(0), plan.PpRankOf(plan.head())}) {
      members.push_back(topology.RankOf({pp_rank, at.dp_rank, at.tp_rank}));
    }
    return members;
  }
  const int size = group == Group::kDp ? topology.dp_size : group == Group::kTp ? topology.tp_size : 0;
  for (int i = 0; i < size; ++i) {
    (group == Group::kDp ? at.dp_rank : at.tp_rank) = i;
    members.push_back(topology.RankOf(at));
  }
  return members;
}

}  // namespace

Placement::Placement(const Plan& plan, const Cluster& cluster) : plan_(plan), cluster_(cluster) {
  const int64_t world = plan.topology.world_size();
  ranks_per_node_ = (world + cluster.nodes - 1) / cluster.nodes;
  ranks_per_device_ = (ranks_per_node_ + cluster.devices_per_node - 1) / cluster.devices_per_node;
  const bool needs_network = world > ranks_per_node_, needs_link = ranks_per_node_ > 1;
  if ((needs_network && cluster.network.port.all.bytes_per_second <= 0) ||
      (needs_link && cluster.node_link.all.bytes_per_second <= 0)) {
    throw Error(ErrorCode::kConfig, "PLN031",
                fmt::format("{} ranks on {} nodes, and the cluster {} has no {}", world, cluster.nodes, cluster.name,
                            needs_network && cluster.network.port.all.bytes_per_second <= 0 ? "network" : "node_link"),
                cluster.name, "describe the link, or ask for fewer ranks or nodes");
  }
  // Processes carry each other's data by themselves: where they are more than the cores, they take turns at that too.
  if (cluster.device.kind == DeviceKind::kCpu && cluster.host.cores > 0) {
    turns_ = std::max(1.0, static_cast<double>(ranks_per_node_) / static_cast<double>(cluster.host.cores));
  }
  dp_ = ShapeOf(Group::kDp);
  tp_ = ShapeOf(Group::kTp);
  tie_ = ShapeOf(Group::kTie);
  world_ = {world, std::min(world, ranks_per_node_), world == 2 && !needs_network && cluster.pair_link.has_value()};
}

int64_t Placement::DeviceOf(int64_t rank) const {
  return NodeOf(rank) * cluster_.devices_per_node + rank % ranks_per_node_ / ranks_per_device_;
}

// The group that is spread most.
Placement::Shape Placement::ShapeOf(Group group) const {
  Shape worst;
  bool first = true;
  for (int64_t rank = 0; rank < plan_.topology.world_size(); ++rank) {
    const std::vector<int64_t> members = Members(plan_, group, rank);
    if (members.front() != rank) continue;
    std::map<int64_t, int64_t> on_node;
    for (const int64_t member : members) ++on_node[NodeOf(member)];
    Shape shape{static_cast<int64_t>(members.size()), 1, false};
    for (const auto& [node, count] : on_node) shape.largest_part = std::max(shape.largest_part, count);
    shape.pair = cluster_.pair_link && members.size() == 2 && DeviceOf(members[0]) / 2 == DeviceOf(members[1]) / 2;
    if (first || shape.largest_part < worst.largest_part || (worst.pair && !shape.pair)) worst = shape;
    first = false;
  }
  return worst;
}

double Placement::PortsBytesPerSecond() const {
  const double share =
      std::min(1.0, static_cast<double>(ranks_per_node_) / static_cast<double>(cluster_.devices_per_node));
  const double ports = std::max(1.0, static_cast<double>(cluster_.network.ports_per_node) * share);
  return ports * cluster_.network.port.all.bytes_per_second;
}

double Placement::Seconds(Group group, Collective collective, double bytes) const {
  const Shape& shape = group == Group::kDp ? dp_ : group == Group::kTp ? tp_ : group == Group::kTie ? tie_ : world_;
  if (shape.ranks == 1) return 0;
  const LinkRate& inside = RateOf(shape.pair ? *cluster_.pair_link : cluster_.node_link, collective);
  if (!shape.spans()) return turns_ * trireme::Seconds(inside, SentBytes(collective, bytes, shape.ranks), shape.ranks);
  // The node's ports are shared by all its ranks, so by as many groups as it has parts of.
  LinkRate port = RateOf(cluster_.network.port, collective);
  const double ports = PortsBytesPerSecond() / cluster_.network.port.all.bytes_per_second,
               part = static_cast<double>(shape.largest_part), on_node = static_cast<double>(ranks_per_node_);
  const auto between = [&](double sent, double share, int64_t ranks) {
    return trireme::Seconds(port, 0, ranks) + sent / (port.bytes_per_second * ports * share);
  };
  double ring = between(SentBytes(collective, bytes, shape.ranks), part / on_node, shape.ranks);
  if (shape.largest_part == 1) return ring;
  ring = std::max(ring, trireme::Seconds(inside, SentBytes(collective, bytes, shape.ranks), shape.ranks));
  if (!cluster_.network.hierarchical) return ring;
  const int64_t nodes = (shape.ranks + shape.largest_part - 1) / shape.largest_part;
  const double within = trireme::Seconds(inside, SentBytes(collective, bytes, shape.largest_part), shape.largest_part);
  return std::min(ring, within + between(SentBytes(collective, bytes / part, nodes), 1 / on_node, nodes));
}

double Placement::TransferSeconds(int from_pp, int to_pp, double bytes) const {
  const Topology& topology = plan_.topology;
  std::map<int64_t, int64_t> leaving;  // by node: transfers at once to another one
  for (int dp = 0; dp < topology.dp_size; ++dp) {
    for (int tp = 0; tp < topology.tp_size; ++tp) {
      const int64_t from = NodeOf(topology.RankOf({from_pp, dp, tp})), to = NodeOf(topology.RankOf({to_pp, dp, tp}));
      if (from != to) ++leaving[from];
    }
  }
  int64_t most = 0;
  for (const auto& [node, count] : leaving) most = std::max(most, count);
  if (most == 0) {
    const int64_t from = DeviceOf(topology.RankOf({from_pp, 0, 0})), to = DeviceOf(topology.RankOf({to_pp, 0, 0}));
    const bool pair = cluster_.pair_link && from / 2 == to / 2;
    return turns_ * trireme::Seconds(TransferRate(pair ? *cluster_.pair_link : cluster_.node_link), bytes, 2);
  }
  LinkRate port = TransferRate(cluster_.network.port);
  const double ports = PortsBytesPerSecond() / cluster_.network.port.all.bytes_per_second;
  port.bytes_per_second *= std::min(1.0, ports / static_cast<double>(most));
  return trireme::Seconds(port, bytes, 2);
}

}  // namespace trireme
