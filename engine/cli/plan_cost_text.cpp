// What a plan sends and how long it takes.
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/strings.h"
#include "engine/cli/plan_text.h"
#include "engine/plan/throughput.h"
#include "engine/schedule/placement.h"

namespace trireme::cli {
namespace {

// "dp 8, inside a node", "tp 8, across 2 nodes".
std::string LinkOf(const Planned& planned, Group group, std::string_view name) {
  const GroupSpread spread = SpreadOf(planned.plan, planned.ranks_per_node, group);
  const std::string link =
      spread.spans_nodes() ? fmt::format("across {} nodes", spread.nodes()) : std::string("inside a node");
  return group == Group::kPp ? link : fmt::format("{} {}, {}", name, spread.ranks, link);
}

void Row(std::string_view name, int64_t bytes, std::string_view how) {
  if (bytes > 0) fmt::print("  {:<16}{:>12}  {}\n", name, FormatBytes(bytes), how);
}

// ZeRO 2 and 3 with a pipeline: DeepSpeed refuses it, here it has a price.
void PrintPipelineWithZero(const Plan& plan, const Plan& stage_1) {
  const auto cost = [](const Plan& of) {
    return fmt::format("each rank sends {} of gathers and reductions a step, the fullest holds {}",
                       FormatBytes(of.traffic.gather + of.traffic.reduce), FormatBytes(of.memory.total()));
  };
  Line("", fmt::format("zero stage {} with a pipeline: {} for each micro-batch;", plan.zero_stage,
                       plan.zero_stage == 3 ? "weights are gathered and gradients reduced" : "gradients are reduced"));
  Line("", cost(plan));
  Line("", "at stage 1: " + cost(stage_1));
}

void PrintWaiting(const Prediction& p) {
  const ExposedSeconds& e = p.exposed;
  const auto row = [&](std::string_view name, double seconds, std::string_view how) {
    if (seconds < 1e-6) return;
    fmt::print("  {:<16}{:>12}  {:4.1f} %  {}\n", name, fmt::format("{:.4g} s", seconds),
               100 * seconds / p.step_seconds, how);
  };
  fmt::print("waiting in a step, the mean of the pipeline ranks\n");
  row("weights", e.gather, "gathers that nothing hides");
  row("gradients", e.reduce, "reductions that nothing hides, and sums at the end of the step");
  row("inside the units", e.tensor_parallel, "collectives of tensor parallelism that no product hides");
  row("boundaries", e.transfer, "transfers between pipeline ranks");
  row("bubble", p.bubble_seconds, "for other pipeline ranks");
  row("copies", p.copies_seconds, "between host and device");
  row("host", p.host_seconds, "updates on the CPU");
}

}  // namespace

void PrintTraffic(const Planned& planned) {
  const Plan& plan = planned.plan;
  const TrafficAccount& t = plan.traffic;
  fmt::print("traffic of a step, what one rank sends\n");
  Row("weights", t.gather, "gathered over " + LinkOf(planned, Group::kDp, "dp"));
  Row("gradients", t.reduce, "reduced over " + LinkOf(planned, Group::kDp, "dp"));
  Row("inside the units", t.tensor_parallel, "over " + LinkOf(planned, Group::kTp, "tp"));
  Row("boundaries", t.transfer, "to the next pipeline rank and back, " + LinkOf(planned, Group::kPp, ""));
  fmt::print("  {:<16}{:>12}\n", "total", FormatBytes(t.total()));
  Row("to the host", t.down, "copied between device and host");
  Row("from the host", t.up, "copied between device and host");
  const double flops = ModelFlopsPerToken(plan), tokens = static_cast<double>(plan.batch.tokens_per_step());
  Line("work",
       fmt::format("{:.4g} GFLOP a token, {:.4g} TFLOP a step and rank (forward and backward, causal attention)",
                   flops / 1e9, flops * tokens / 1e12 / plan.topology.world_size()));
  if (planned.stage_1) PrintPipelineWithZero(plan, *planned.stage_1);
}

void PrintPrediction(const Planned& planned) {
  if (!planned.prediction && planned.cluster) return Line("time", "not predicted: see the warning");
  if (!planned.prediction) {
    return Line("time", fmt::format("not predicted: name the machine with --cluster, a file or one of {}",
                                    Join(ClusterNames(), ", ")));
  }
  const Prediction& p = *planned.prediction;
  const auto count = [](double value) { return FormatCount(static_cast<int64_t>(value)); };
  Line("time", fmt::format("a step takes {:.4g} s on {}: {} tokens/s, {} a rank", p.step_seconds, planned.cluster->name,
                           count(p.tokens_per_second), count(p.tokens_per_second_per_rank)));
  Line("", fmt::format("MFU {:.1f} % (with the half of attention that is computed {:.1f} %), {:.4g} TFLOP/s a rank",
                       100 * p.mfu_full, 100 * p.mfu_causal, p.flops_per_second_per_rank / 1e12));
  Line("", fmt::format("exposed communication {:.1f} % of the step, bubble {:.1f} %", 100 * p.exposed_share,
                       100 * p.bubble));
  if (p.exposed.total() + p.bubble_seconds + p.copies_seconds + p.host_seconds > 1e-6) PrintWaiting(p);
}

}  // namespace trireme::cli
