#include "engine/cli/plan_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/printable.h"
#include "engine/base/strings.h"

namespace trireme::cli {
namespace {

void PrintModel(const Plan& plan) {
  const ModelSpec& m = plan.model;
  Line("model",
       fmt::format("{}: {}, hidden size {}, {}, vocabulary {} ({} rows), {} positions, {} head", m.name,
                   Counted(m.num_layers, "layer"), m.hidden_size, Counted(m.num_attention_heads, "head"), m.vocab_size,
                   m.padded_vocab_size, m.max_position_embeddings, m.tie_word_embeddings ? "tied" : "own"));
  Line("parameters", FormatCount(plan.num_parameters));
}

void PrintBatch(const Planned& planned) {
  const Plan& plan = planned.plan;
  const BatchPlan& b = plan.batch;
  const Topology& t = plan.topology;
  Line("batch", fmt::format("train_batch_size {} = {} (micro) x {} (accumulation) x {} (dp)", b.train_batch_size,
                            b.micro_batch_size, b.num_micro_batches, t.dp_size));
  const char* most = b.is_dynamic() ? "up to " : "";
  Line("", fmt::format("{}{} tokens a sequence, {}{} a micro-batch, {}{} a step", most, FormatCount(b.sequence_length),
                       most, FormatCount(b.tokens_per_micro_batch()), most, FormatCount(b.tokens_per_step())));
  if (b.is_dynamic()) {
    Line("", fmt::format("dynamic batching: micro-batches of {} to {} sequences, lengths in multiples of {}",
                         b.dynamic.min_rows, FormatCount(b.dynamic.max_rows), b.dynamic.length_multiple));
  }
  Line("ranks",
       fmt::format("{} = {} node{} x {}; grid pp {} x dp {} x tp {}, rank = (pp_rank * {} + dp_rank) * {} + tp_rank",
                   t.world_size(), planned.num_nodes, planned.num_nodes == 1 ? "" : "s", planned.ranks_per_node,
                   t.pp_size, t.dp_size, t.tp_size, t.dp_size, t.tp_size));
  std::string_view title = "grid";
  for (const std::string& line : GridLines(t, planned.ranks_per_node)) Line(std::exchange(title, ""), line);
}

void PrintTypes(const Plan& plan) {
  Line("types", fmt::format("weights and activations {}, {} {}, gradients {}, their reduction {}",
                            Name(plan.dtypes.compute), plan.separate_master ? "master weights and moments" : "moments",
                            Name(plan.dtypes.master), Name(plan.dtypes.accumulate), Name(plan.dtypes.communicate)));
  std::string zero = fmt::format("stage {}", plan.zero_stage);
  if (plan.zero_stage != plan.effective_zero_stage) zero += ": one data-parallel rank, nothing to shard";
  Line("zero", zero);
}

// Equal units on one line: "40 x block of 314,644,480".
void PrintUnits(const Plan& plan) {
  std::vector<std::pair<std::string, int>> kinds;
  int64_t padded = 0;
  for (const UnitLayout& unit : plan.units) {
    const bool block = unit.spec.kind == UnitKind::kBlock;
    const std::string text =
        fmt::format("{} of {}", block ? "block" : unit.spec.name, FormatCount(unit.padded_elements));
    padded += unit.padded_elements;
    if (!kinds.empty() && kinds.back().first == text) {
      ++kinds.back().second;
    } else {
      kinds.push_back({text, 1});
    }
  }
  std::string text;
  for (const auto& [kind, count] : kinds) text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, kind);
  Line("units", fmt::format("{}: {} elements; with padding {}", plan.num_units(), text, FormatCount(padded)));
}

// One line a pipeline rank: what it holds, and its memory.
void PrintStages(const Plan& plan) {
  const int pp = plan.topology.pp_size;
  if (pp == 1) return;
  const double m = static_cast<double>(plan.batch.num_micro_batches), v = plan.virtual_stages;
  const double bubble = (pp - 1) / (v * m + pp - 1);
  Line("pipeline", fmt::format("{} ranks x {} stages, {}; bubble of equal stages {:.1f} %", pp, plan.virtual_stages,
                               plan.pipeline_schedule == PipelineSchedule::kGPipe        ? "gpipe"
                               : plan.pipeline_schedule == PipelineSchedule::kZeroBubble ? "zero-bubble, at most"
                                                                                         : "1f1b",
                               100 * bubble));
  for (int rank = 0; rank < pp; ++rank) {
    std::string text;
    for (int stage = rank; stage < plan.num_stages(); stage += pp) {
      const UnitRange& units = plan.stages[static_cast<size_t>(stage)];
      text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", plan.units[static_cast<size_t>(units.first)].spec.name,
                          units.first == units.last ? "" : " to ",
                          units.first == units.last ? "" : plan.units[static_cast<size_t>(units.last)].spec.name);
    }
    if (plan.tied_across_stages() && rank == plan.PpRankOf(plan.head())) text += ", a copy of the tied embedding";
    Line("", fmt::format("rank {}: {}; {}", rank, text,
                         FormatBytes(plan.memory_of_pp_rank[static_cast<size_t>(rank)].total())));
  }
}

// "full 0 to 7, cheap 8 to 23, kept 24 to 31".
void PrintActivations(const Plan& plan) {
  static constexpr std::string_view kNames[] = {"kept", "cheap parts made again", "made again whole"};
  std::string text;
  int64_t layers = 0, inputs = 0, cheap = 0;
  for (int first = 1; first < plan.head();) {
    int last = first;
    const auto policy = [&](int unit) { return plan.units[static_cast<size_t>(unit)].recompute; };
    while (last + 1 < plan.head() && policy(last + 1) == policy(first)) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", kNames[static_cast<size_t>(policy(first))]);
    const bool all = first == 1 && last + 1 == plan.head();
    if (!all)
      text += first == last ? fmt::format(" in layer {}", first - 1)
                            : fmt::format(" in layers {} to {}", first - 1, last - 1);
    first = last + 1;
  }
  for (int unit = 1; unit < plan.head(); ++unit) {
    const UnitLayout& layout = plan.units[static_cast<size_t>(unit)];
    cheap += layout.recompute == Recompute::kCheap;
    layers += layout.recompute == Recompute::kFull;
    inputs += layout.recompute == Recompute::kFull && layout.segment.first == unit;
  }
  Line("activations", text);
  if (cheap > 0) Line("", "cheap: outputs of norms and of the MLP's activation");
  if (layers == 0) return;
  Line("", fmt::format("of {} layers the inputs of {} are kept{}{}", layers, inputs,
                       plan.boundaries_on_host ? " on the host" : "",
                       plan.partition_boundaries ? fmt::format(", 1/{} on each tp rank", plan.topology.tp_size) : ""));
}

void PrintBuckets(const Plan& plan) {
  int64_t least = INT64_MAX, most = 0;
  for (const UnitRange& bucket : plan.buckets) {
    int64_t elements = 0;
    for (int unit = bucket.first; unit <= bucket.last; ++unit)
      elements += plan.units[static_cast<size_t>(unit)].padded_elements;
    least = std::min(least, elements);
    most = std::max(most, elements);
  }
  Line("buckets", fmt::format("{} of {} to {} elements", plan.buckets.size(), FormatCount(least), FormatCount(most)));
}

}  // namespace

void Line(std::string_view title, const std::string& text) { fmt::print("{:<12}{}\n", title, Printable(text)); }

void PrintLayout(const Planned& planned) {
  const Plan& plan = planned.plan;
  PrintModel(plan);
  PrintBatch(planned);
  PrintTypes(plan);
  PrintUnits(plan);
  PrintStages(plan);
  PrintBuckets(plan);
  PrintActivations(plan);
}

}  // namespace trireme::cli
