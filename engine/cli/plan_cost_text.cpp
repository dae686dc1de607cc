// What a plan sends and how long it takes.
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/strings.h"
#include "engine/cli/plan_text.h"

namespace trireme::cli {
namespace {

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

}  // namespace

void PrintTraffic(const Planned& planned) {
  const Plan& plan = planned.plan;
  const TrafficAccount& t = plan.traffic;
  std::string text = fmt::format("each rank sends {} a step: gathers of weights {}, reductions of gradients {}",
                                 FormatBytes(t.total()), FormatBytes(t.gather), FormatBytes(t.reduce));
  if (t.transfer > 0) text += fmt::format(", transfers between stages {}", FormatBytes(t.transfer));
  if (t.tensor_parallel > 0) text += fmt::format(", inside the units over tp {}", FormatBytes(t.tensor_parallel));
  Line("traffic", text);
  if (t.down + t.up > 0) {
    Line("", fmt::format("and copies {} to the host, {} from it", FormatBytes(t.down), FormatBytes(t.up)));
  }
  double forward = 0;
  for (const UnitLayout& unit : plan.units) forward += unit.spec.forward_flops_per_token * plan.topology.tp_size;
  const double tokens = static_cast<double>(plan.batch.tokens_per_step());
  Line("work",
       fmt::format("{:.4g} GFLOP a token, {:.4g} TFLOP a step and rank (forward and backward, causal attention)",
                   3 * forward / 1e9, 3 * forward * tokens / 1e12 / plan.topology.world_size()));
  if (planned.stage_1) PrintPipelineWithZero(plan, *planned.stage_1);
}

void PrintPrediction(const Planned& planned) {
  if (!planned.prediction) {
    return Line("time", fmt::format("not predicted: name the machine with --cluster, a file or one of {}",
                                    Join(ClusterNames(), ", ")));
  }
  const Prediction& p = *planned.prediction;
  const ExposedSeconds& e = p.exposed;
  Line("time", fmt::format("a step takes {:.4g} s on {}: {} tokens/s, {} a rank", p.step_seconds, planned.cluster->name,
                           FormatCount(static_cast<int64_t>(p.tokens_per_second)),
                           FormatCount(static_cast<int64_t>(p.tokens_per_second_per_rank))));
  Line("", fmt::format("MFU {:.1f} % (causal attention {:.1f} %), {:.4g} TFLOP/s a rank", 100 * p.mfu_full,
                       100 * p.mfu_causal, p.flops_per_second_per_rank / 1e12));
  Line("", fmt::format("exposed communication {:.4g} s, {:.1f} %: gathers {:.3g}, reductions {:.3g}, tp {:.3g}, "
                       "transfers {:.3g}; bubble {:.1f} %",
                       e.total(), 100 * p.exposed_share, e.gather, e.reduce, e.tensor_parallel, e.transfer,
                       100 * p.bubble));
  if (p.copies_seconds + p.host_seconds > 0) {
    Line("", fmt::format("waiting for copies {:.3g} s, for updates on the host {:.3g} s", p.copies_seconds,
                         p.host_seconds));
  }
}

}  // namespace trireme::cli
