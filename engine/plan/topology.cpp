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
  if (tp != 1) {
    throw Error(ErrorCode::kConfig, "PLN001", fmt::format("tp_size {}: tensor parallelism is not in this version", tp),
                "tensor_parallel.tp_size", "set it to 1; pipeline stages and ZeRO stage 3 divide the weights too");
  }
  if (world_size < 1) {
    throw Error(ErrorCode::kConfig, "PLN002", fmt::format("a world of {} ranks", world_size), "",
                "ask for at least one node and one rank a node");
  }
  Topology topology;
  if (world_size % pp != 0) {
    throw Error(ErrorCode::kConfig, "PLN002",
                fmt::format("{} ranks do not divide into {} pipeline stages", world_size, pp),
                "pipeline_parallel.pp_size", "take a number of ranks that is a multiple of it");
  }
  topology.pp_size = static_cast<int>(pp);
  topology.dp_size = static_cast<int>(world_size / pp);
  return topology;
}

}  // namespace plan_parts
}  // namespace trireme
