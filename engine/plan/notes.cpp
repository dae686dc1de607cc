#include "engine/plan/notes.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "engine/base/bytes.h"

namespace trireme {
namespace {

int64_t LargestDivisorUpTo(int64_t of, int64_t most) {
  int64_t divisor = most;
  while (of % divisor != 0) --divisor;
  return divisor;
}

// Tensor-parallel groups are slow across nodes.
std::optional<std::string> OfTensorParallel(const Plan& plan, int64_t ranks_per_node, const RankRates& rates) {
  const int64_t tp = plan.topology.tp_size;
  if (tp == 1 || plan.topology.world_size() <= ranks_per_node || ranks_per_node % tp == 0) return std::nullopt;
  const auto bytes = static_cast<double>(plan.traffic.tensor_parallel);
  return fmt::format(
      "tensor-parallel groups of {} ranks span nodes of {}: a rank sends {} a step inside the units, between their "
      "products; over a network at {:.1f} GB/s{} that takes {:.3g} s a step, inside a node at "
      "{:.0f} GB/s {:.3g} s. fix: set tensor_parallel.tp_size to {} or another divisor of {}, and use pipeline stages "
      "across nodes",
      tp, ranks_per_node, FormatBytes(plan.traffic.tensor_parallel), rates.network / 1e9, rates.network_text,
      bytes / rates.network, rates.node / 1e9, bytes / rates.node,
      LargestDivisorUpTo(ranks_per_node, std::min(tp, ranks_per_node)), ranks_per_node);
}

// Fewer micro-batches than ranks leave a pipeline empty most of the time.
std::optional<std::string> OfPipeline(const Plan& plan) {
  const int64_t pp = plan.topology.pp_size, m = plan.batch.num_micro_batches, enough = 4 * pp;
  if (pp == 1 || m >= pp) return std::nullopt;
  const auto bubble = [&](int64_t micro_batches) {
    return 100.0 * static_cast<double>(pp - 1) / static_cast<double>(plan.virtual_stages * micro_batches + pp - 1);
  };
  return fmt::format(
      "{} micro-batch{} a step on {} pipeline ranks: the bubble is {:.0f} % of the time. fix: with "
      "gradient_accumulation_steps {} it is {:.0f} %",
      m, m == 1 ? "" : "es", pp, bubble(m), enough, bubble(enough));
}

}  // namespace

std::vector<std::string> LayoutNotes(const Plan& plan, int64_t ranks_per_node, const RankRates& rates) {
  std::vector<std::string> notes;
  for (const std::optional<std::string>& note : {OfTensorParallel(plan, ranks_per_node, rates), OfPipeline(plan)}) {
    if (note) notes.push_back(*note);
  }
  return notes;
}

}  // namespace trireme
