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

// The group of that kind in which `rank` is the first; empty: it is none's first.
std::vector<int64_t> GroupFrom(const Plan& plan, Group group, int64_t rank) {
  const Topology& topology = plan.topology;
  Topology::Coordinate at = topology.CoordinateOf(static_cast<int>(rank));
  std::vector<int64_t> members;
  if ((group == Group::kDp && at.dp_rank > 0) || (group == Group::kTp && at.tp_rank > 0) ||
      (group == Group::kTie && at.pp_rank != plan.PpRankOf(0))) {
    return members;
  }
  const auto add = [&](Topology::Coordinate member) { members.push_back(topology.RankOf(member)); };
  switch (group) {
    case Group::kDp:
      for (int i = 0; i < topology.dp_size; ++i) add({at.pp_rank, i, at.tp_rank});
      break;
    case Group::kTp:
      for (int i = 0; i < topology.tp_size; ++i) add({at.pp_rank, at.dp_rank, i});
      break;
    case Group::kPp:
      for (int i = at.pp_rank; i < std::min(at.pp_rank + 2, topology.pp_size); ++i) add({i, at.dp_rank, at.tp_rank});
      break;
    case Group::kTie:
      add({plan.PpRankOf(0), at.dp_rank, at.tp_rank});
      if (plan.tied_across_stages()) add({plan.PpRankOf(plan.head()), at.dp_rank, at.tp_rank});
      break;
    default:
      for (int64_t i = 0; i < topology.world_size(); ++i) members.push_back(i);
  }
  return members;
}

// Calls visit(members) for each group of the kind.
template <typename Visit>
void ForEachGroup(const Plan& plan, Group group, Visit visit) {
  const int64_t world = group == Group::kWorld ? 1 : plan.topology.world_size();
  for (int64_t rank = 0; rank < world; ++rank) {
    const std::vector<int64_t> members = GroupFrom(plan, group, rank);
    if (!members.empty()) visit(members);
  }
}

}  // namespace

GroupSpread SpreadOf(const Plan& plan, int64_t ranks_per_node, Group group) {
  GroupSpread most;
  double least_share = 2;
  ForEachGroup(plan, group, [&](const std::vector<int64_t>& members) {
    std::map<int64_t, int64_t> on_node;
    for (const int64_t member : members) ++on_node[member / ranks_per_node];
    GroupSpread spread{static_cast<int64_t>(members.size()), 1};
    for (const auto& [node, count] : on_node) spread.on_a_node = std::max(spread.on_a_node, count);
    const double share = static_cast<double>(spread.on_a_node) / static_cast<double>(spread.ranks);
    if (share > least_share || (share == least_share && spread.ranks <= most.ranks)) return;
    least_share = share;
    most = spread;
  });
  return most;
}

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
  // What tensor parallelism sends is a part of compute instructions, and the simulator has pipeline ranks share those.
  if (cluster.device.kind == DeviceKind::kCpu && cluster.host.cores > 0) {
    const auto turns = [&](int64_t ranks) {
      return std::max(1.0, static_cast<double>(ranks) / static_cast<double>(cluster.host.cores));
    };
    turns_ = turns(ranks_per_node_);
    tp_turns_ = turns(std::min<int64_t>(ranks_per_node_, world / plan.topology.pp_size));
  }
  for (const Group group : {Group::kDp, Group::kTp, Group::kTie, Group::kWorld}) {
    shapes_[group] = {SpreadOf(plan, ranks_per_node_, group), ArePairs(group)};
  }
}

int64_t Placement::DeviceOf(int64_t rank) const {
  return NodeOf(rank) * cluster_.devices_per_node + rank % ranks_per_node_ / ranks_per_device_;
}

bool Placement::ArePairs(Group group) const {
  bool pairs = cluster_.pair_link.has_value();
  ForEachGroup(plan_, group, [&](const std::vector<int64_t>& members) {
    pairs = pairs && members.size() == 2 && DeviceOf(members[0]) / 2 == DeviceOf(members[1]) / 2;
  });
  return pairs;
}

double Placement::Ports() const {
  const double share =
      std::min(1.0, static_cast<double>(ranks_per_node_) / static_cast<double>(cluster_.devices_per_node));
  return std::max(1.0, static_cast<double>(cluster_.network.ports_per_node) * share);
}

double Placement::Seconds(Group group, Collective collective, double bytes) const {
  const Shape& shape = shapes_.at(group);
  const int64_t ranks = shape.spread.ranks, part = shape.spread.on_a_node;
  if (ranks == 1) return 0;
  const LinkRate& inside = RateOf(shape.pairs ? *cluster_.pair_link : cluster_.node_link, collective);
  const double turns = group == Group::kTp ? tp_turns_ : turns_;
  if (part == ranks) return turns * trireme::Seconds(inside, SentBytes(collective, bytes, ranks), ranks);
  // The node's ports are shared by all its ranks, so by as many groups as it has parts of.
  const LinkRate port = RateOf(cluster_.network.port, collective);
  const auto on_node = static_cast<double>(ranks_per_node_);
  const auto between = [&](double sent, double share, int64_t of) {
    return trireme::Seconds(port, 0, of) + sent / (port.bytes_per_second * Ports() * share);
  };
  double ring = between(SentBytes(collective, bytes, ranks), static_cast<double>(part) / on_node, ranks);
  if (part == 1) return ring;
  ring = std::max(ring, trireme::Seconds(inside, SentBytes(collective, bytes, ranks), ranks));
  if (!cluster_.network.hierarchical) return ring;
  const int64_t nodes = shape.spread.nodes();
  const double within = trireme::Seconds(inside, SentBytes(collective, bytes, part), part);
  const double own = bytes / static_cast<double>(part);
  return std::min(ring, within + between(SentBytes(collective, own, nodes), 1 / on_node, nodes));
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
  port.bytes_per_second *= std::min(1.0, Ports() / static_cast<double>(most));
  return trireme::Seconds(port, bytes, 2);
}

}  // namespace trireme
