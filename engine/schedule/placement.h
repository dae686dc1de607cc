// Where a plan's ranks lie on a cluster's nodes, and how long a group of them takes for what it sends. rank =
// (pp_rank * dp_size + dp_rank) * tp_size + tp_rank, and nodes are filled in rank order.
#pragma once
#include <cstdint>
#include <map>

#include "engine/plan/plan.h"
#include "engine/schedule/instruction.h"
#include "parsers/cluster.h"

namespace trireme {

// How a kind of group lies on the nodes; of several the one that is spread most. kPp: two ranks of one pipeline whose
// stages follow each other.
struct GroupSpread {
  int64_t ranks = 1;
  int64_t on_a_node = 1;  // most of them on one
  bool spans_nodes() const { return on_a_node < ranks; }
  int64_t nodes() const { return (ranks + on_a_node - 1) / on_a_node; }
};
GroupSpread SpreadOf(const Plan& plan, int64_t ranks_per_node, Group group);

enum class Collective : uint8_t { kAllReduce, kReduceScatter, kAllGather };

class Placement {
 public:
  // Both must outlive it. Throws Error{kConfig, PLN03x} where ranks have no link between them.
  Placement(const Plan& plan, const Cluster& cluster);

  int64_t ranks_per_node() const { return ranks_per_node_; }
  // Ranks that share one device, at least 1.
  int64_t ranks_per_device() const { return ranks_per_device_; }
  int64_t NodeOf(int64_t rank) const { return rank / ranks_per_node_; }
  int64_t DeviceOf(int64_t rank) const;  // counted over all nodes

  double Ports() const;  // of its network that a node's ranks reach
  // Of a tensor of so many bytes (what all ranks together have of a gathered or scattered one), in the slowest of the
  // plan's groups of that kind. The ranks of a node do it at once, each in its own group, and share the node's ports.
  double Seconds(Group group, Collective collective, double bytes) const;
  // One rank to another of equal dp and tp rank, while its neighbours send theirs.
  double TransferSeconds(int from_pp, int to_pp, double bytes) const;

 private:
  // Two devices that a bridge joins, in every group of the kind.
  bool ArePairs(Group group) const;

  const Plan& plan_;
  const Cluster& cluster_;
  int64_t ranks_per_node_ = 1, ranks_per_device_ = 1;
  struct Shape {
    GroupSpread spread;
    bool pairs = false;
  };
  std::map<Group, Shape> shapes_;
  // Of processes on the CPU: by how much they slow each other's transfers.
  double turns_ = 1, tp_turns_ = 1;
};

}  // namespace trireme
