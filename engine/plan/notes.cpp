#include "engine/plan/notes.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/base/bytes.h"

namespace trireme {
namespace {

int64_t LargestDivisorUpTo(int64_t of, int64_t most) {
  int64_t divisor = most;
  while (of % divisor != 0) --divisor;
  return divisor;
}

}  // namespace

std::vector<std::string> LayoutNotes(const Plan& plan, int64_t ranks_per_node) {
  const int64_t tp = plan.topology.tp_size;
  if (tp == 1 || plan.topology.world_size() <= ranks_per_node || ranks_per_node % tp == 0) return {};
  const auto bytes = static_cast<double>(plan.traffic.tensor_parallel);
  return {fmt::format(
      "tensor-parallel groups of {} ranks span nodes of {}: a rank sends {} a step inside the units, between their "
      "products; over a network at {:.1f} GB/s (one 200 Gb/s port a rank) that takes {:.3g} s a step, inside a node at "
      "{:.0f} GB/s {:.3g} s. fix: set tensor_parallel.tp_size to {} or another divisor of {}, and use pipeline stages "
      "across nodes",
      tp, ranks_per_node, FormatBytes(plan.traffic.tensor_parallel), kNetworkBytesPerSecond / 1e9,
      bytes / kNetworkBytesPerSecond, kNodeBytesPerSecond / 1e9, bytes / kNodeBytesPerSecond,
      LargestDivisorUpTo(ranks_per_node, std::min(tp, ranks_per_node)), ranks_per_node)};
}

}  // namespace trireme
