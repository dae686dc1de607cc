#include "engine/plan/notes.h"

#include <fmt/core.h>

#include <numeric>
#include <optional>

#include "engine/base/bytes.h"
#include "engine/base/strings.h"

namespace trireme {
namespace {

// A layout whose tensor-parallel groups lie inside nodes. What the groups lose, pipeline stages and replicas get.
struct Inside {
  int64_t tp = 1, more_stages = 1, more_replicas = 1;  // times as many
  int64_t micro_batch_size = 1, micro_batches = 1;     // of as many sequences in all
  bool interleaves = false;                            // virtual stages can stay
};

// The largest groups with the most stages that can be; nullopt: replicas do not divide the batch, nor stages the
// layers.
std::optional<Inside> GroupsInside(const Plan& plan, int64_t ranks_per_node) {
  const BatchPlan& batch = plan.batch;
  const int64_t largest = std::gcd(plan.topology.tp_size, ranks_per_node), pp = plan.topology.pp_size;
  const int64_t sequences = batch.micro_batch_size * batch.num_micro_batches, layers = plan.model.num_layers;
  for (int64_t tp = largest; tp >= 1; --tp) {
    const int64_t freed = plan.topology.tp_size / tp;
    for (int64_t stages = largest % tp == 0 ? freed : 0; stages >= 1; --stages) {
      if (freed % stages != 0 || (stages > 1 && pp * stages > layers)) continue;
      const int64_t replicas = freed / stages;
      if (replicas > 1 && (batch.is_dynamic() || sequences % replicas != 0)) continue;
      Inside inside{tp, stages, replicas};
      inside.micro_batch_size = std::gcd(batch.micro_batch_size, sequences / replicas);
      inside.micro_batches = sequences / replicas / inside.micro_batch_size;
      if (plan.sequence_parallel && !batch.is_dynamic() && inside.micro_batch_size * batch.sequence_length % tp != 0) {
        continue;
      }
      inside.interleaves =
          pp * stages > 1 && pp * stages * plan.virtual_stages <= layers && inside.micro_batches % (pp * stages) == 0;
      return inside;
    }
  }
  return std::nullopt;
}

std::string FixFor(const Plan& plan, const Inside& inside) {
  std::vector<std::string> keys = {fmt::format("tensor_parallel.tp_size to {}", inside.tp)};
  const auto set = [&](const char* key, int64_t from, int64_t to) {
    if (from != to) keys.push_back(fmt::format("{} to {}", key, to));
  };
  const int64_t pp = plan.topology.pp_size;
  set("pipeline_parallel.pp_size", pp, pp * inside.more_stages);
  set("trireme.pipeline.virtual_stages", plan.virtual_stages, inside.interleaves ? plan.virtual_stages : 1);
  set("train_micro_batch_size_per_gpu", plan.batch.micro_batch_size, inside.micro_batch_size);
  set("gradient_accumulation_steps", plan.batch.num_micro_batches, inside.micro_batches);
  const std::string last = keys.back();
  keys.pop_back();
  return "set " + (keys.empty() ? last : Join(keys, ", ") + " and " + last);
}

// Tensor-parallel groups are slow across nodes. What they send is held against what groups inside a node would: a rank
// of k sends (k - 1) / k of what its layers exchange, and with pipeline stages in place of the others' ranks it has
// fewer layers, with replicas fewer sequences.
std::optional<std::string> OfTensorParallel(const Plan& plan, int64_t ranks_per_node, const RankRates& rates) {
  const int64_t tp = plan.topology.tp_size;
  if (tp == 1 || plan.topology.world_size() <= ranks_per_node || ranks_per_node % tp == 0) return std::nullopt;
  const std::optional<Inside> can_be = GroupsInside(plan, ranks_per_node);
  const int64_t largest = std::gcd(tp, ranks_per_node);
  const Inside inside = can_be.value_or(Inside{largest, 1, tp / largest});
  const auto bytes = static_cast<double>(plan.traffic.tensor_parallel);
  const double bytes_inside = bytes * static_cast<double>(inside.tp - 1) / static_cast<double>(tp - 1);
  std::vector<std::string> more;
  if (inside.more_stages > 1) more.push_back(fmt::format("{} times the pipeline stages", inside.more_stages));
  if (inside.more_replicas > 1) more.push_back(fmt::format("{} times the replicas", inside.more_replicas));
  const std::string instead =
      inside.tp == 1 ? "without tensor parallelism nothing is sent there"
                     : fmt::format("groups of {} with {} send {}, inside a node at {:.0f} GB/s in {:.3g} s", inside.tp,
                                   Join(more, " and "), FormatBytes(static_cast<int64_t>(bytes_inside)),
                                   rates.node / 1e9, bytes_inside / rates.node);
  const std::string fix = can_be
                              ? FixFor(plan, inside)
                              : fmt::format("set tensor_parallel.tp_size to {}, with a batch that {} replicas divide",
                                            inside.tp, plan.topology.dp_size * inside.more_replicas);
  return fmt::format(
      "tensor-parallel groups of {} ranks span nodes of {}: a rank sends {} a step inside the units, between their "
      "products; over a network at {:.1f} GB/s{} that takes {:.3g} s a step; {}. fix: {}",
      tp, ranks_per_node, FormatBytes(plan.traffic.tensor_parallel), rates.network / 1e9, rates.network_text,
      bytes / rates.network, instead, fix);
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
