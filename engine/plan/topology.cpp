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
  if (tp != 1 || pp != 1) {
    throw Error(
        ErrorCode::kConfig, "PLN001",
        fmt::format("tp_size {} and pp_size {}: tensor and pipeline parallelism are not in this version", tp, pp),
        tp != 1 ? "tensor_parallel.tp_size" : "pipeline_parallel.pp_size",
        "set both to 1; ZeRO stage 3 shards weights, gradients and optimizer states over all ranks");
  }
  if (world_size < 1) {
    throw Error(ErrorCode::kConfig, "PLN002", fmt::format("a world of {} ranks", world_size), "",
                "ask for at least one node and one rank a node");
  }
  Topology topology;
  topology.dp_size = static_cast<int>(world_size);
  return topology;
}

}  // namespace plan_parts
}  // namespace trireme
