#include <fmt/core.h>

#include "engine/base/error.h"
#include "engine/plan/parts.h"

namespace trireme {

Topology::Coordinate Topology::CoordinateOf(int rank) const {
  return {rank / (dp_size * tp_size), rank / tp_size % dp_size, rank % tp_size};
}

int Topology::RankOf(Coordinate coordinate) const {
  return (coordinate.pp_rank * dp_size + coordinate.dp_rank) * tp_size + coordinate.tp_rank;
}

namespace plan_parts {

Topology MakeTopology(const Config& config, int64_t world_size) {
  const int64_t tp = config.tensor_parallel.tp_size, pp = config.pipeline_parallel.pp_size;
  if (world_size < 1) {
    throw Error(ErrorCode::kConfig, "PLN002", fmt::format("a world of {} ranks", world_size), "",
                "ask for at least one node and one rank a node");
  }
  if (world_size % (pp * tp) != 0) {
    throw Error(ErrorCode::kConfig, "PLN002",
                fmt::format("{} ranks do not divide into tp_size {} x pp_size {}", world_size, tp, pp),
                "tensor_parallel.tp_size", fmt::format("take a multiple of {} ranks", pp * tp));
  }
  Topology topology;
  topology.pp_size = static_cast<int>(pp);
  topology.tp_size = static_cast<int>(tp);
  topology.dp_size = static_cast<int>(world_size / (pp * tp));
  return topology;
}

}  // namespace plan_parts
}  // namespace trireme
