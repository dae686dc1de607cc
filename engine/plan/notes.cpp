#include "engine/plan/notes.h"

#include <fmt/core.h>

#include <numeric>
#include <optional>

#include "engine/base/bytes.h"

namespace trireme {
namespace {

// Tensor-parallel groups are slow across nodes. What they send is held against what groups inside a node would: a rank
// of k sends (k - 1) / k of what its layers exchange, and with pipeline stages in place of the others' ranks it has
// fewer layers.
std::optional<std::string> OfTensorParallel(const Plan& plan, int64_t ranks_per_node, const RankRates& rates) {
  const int64_t tp = plan.topology.tp_size, pp = plan.topology.pp_size;
  if (tp == 1 || plan.topology.world_size() <= ranks_per_node || ranks_per_node % tp == 0) return std::nullopt;
  const int64_t inside = std::gcd(tp, ranks_per_node), stages = pp * (tp / inside);
  const auto bytes = static_cast<double>(plan.traffic.tensor_parallel);
  const double bytes_inside = bytes * static_cast<double>(inside - 1) / static_cast<double>(tp - 1);
  const std::string instead =
      inside == 1 ? "without tensor parallelism nothing is sent there"
                  : fmt::format(
                        "groups of {} with {} times the pipeline stages send {}, inside a node at {:.0f} GB/s "
                        "in {:.3g} s",
                        inside, tp / inside, FormatBytes(static_cast<int64_t>(bytes_inside)), rates.node / 1e9,
                        bytes_inside / rates.node);
  return fmt::format(
      "tensor-parallel groups of {} ranks span nodes of {}: a rank sends {} a step inside the units, between their "
      "products; over a network at {:.1f} GB/s{} that takes {:.3g} s a step; {}. fix: set tensor_parallel.tp_size to "
      "{}{}",
      tp, ranks_per_node, FormatBytes(plan.traffic.tensor_parallel), rates.network / 1e9, rates.network_text,
      bytes / rates.network, instead, inside,
      stages <= plan.model.num_layers ? fmt::format(" and pipeline_parallel.pp_size to {}", stages) : "");
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
