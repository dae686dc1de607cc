#include "engine/advise/advice.h"

#include <fmt/core.h>

#include <optional>

#include "engine/base/bytes.h"

namespace trireme {
namespace {

constexpr double kWorthSaying = 0.95;  // of a step

double Percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

// "62 % of this step waits for communication".
std::string WaitsOf(const Prediction& p) {
  return fmt::format("{:.0f} % of this one wait for weights, {:.0f} % for gradients",
                     Percent(p.exposed.gather, p.step_seconds), Percent(p.exposed.reduce, p.step_seconds));
}

// The best of the lower stages that fit.
std::optional<std::string> OfStage(const AdviceOnRequest& request) {
  const Plan& plan = request.plan;
  if (request.limit.limit_bytes <= 0 || plan.effective_zero_stage == 0 || plan.offloads()) return std::nullopt;
  std::optional<std::string> text;
  double least = request.prediction != nullptr ? request.prediction->step_seconds : 1;
  int64_t least_sent = plan.traffic.total();
  for (int stage = plan.zero_stage - 1; stage >= 0; --stage) {
    Layout layout = LayoutOf(request.job.config);
    layout.zero_stage = stage;
    const std::optional<Plan> lower = PlanOf(request.job, WithLayout(request.job.config, layout));
    if (!lower || !request.limit.Fits(*lower)) break;  // stages below take more still
    const std::string fits = fmt::format("zero_optimization.stage {} fits too, with {} to spare", stage,
                                         FormatBytes(request.limit.limit_bytes - request.limit.Needs(*lower)));
    if (request.cluster != nullptr) {
      const double seconds = Predict(*lower, *request.cluster).step_seconds;
      if (seconds >= kWorthSaying * least) continue;
      least = seconds;
      text = fmt::format("{}, and a step takes {:.3g} s instead of {:.3g}: {}", fits, seconds,
                         request.prediction->step_seconds, WaitsOf(*request.prediction));
    } else if (lower->traffic.total() < least_sent) {
      least_sent = lower->traffic.total();
      text = fmt::format("{}, and a rank sends {} a step instead of {}", fits, FormatBytes(lower->traffic.total()),
                         FormatBytes(plan.traffic.total()));
    }
  }
  return text;
}

// The same batch on one of the nodes.
std::optional<std::string> OfNodes(const AdviceOnRequest& request) {
  const Cluster* cluster = request.cluster;
  const Plan& plan = request.plan;
  if (cluster == nullptr || cluster->nodes == 1 || plan.topology.dp_size % cluster->nodes != 0) return std::nullopt;
  Job alone = request.job;
  alone.inputs.world_size /= cluster->nodes;
  alone.config.world_size = alone.inputs.world_size;
  alone.config.dp_size /= cluster->nodes;
  alone.config.batch.gradient_accumulation_steps *= cluster->nodes;
  const std::optional<Plan> one = PlanOf(alone, alone.config);
  if (!one || (request.limit.limit_bytes > 0 && !request.limit.Fits(*one))) return std::nullopt;
  Cluster node = *cluster;
  node.nodes = 1;
  const double seconds = Predict(*one, node).step_seconds, now = request.prediction->step_seconds;
  if (kWorthSaying * seconds > now) return std::nullopt;
  return fmt::format(
      "one node alone takes {:.3g} s for the same step, {} nodes take {:.3g}: {}. More micro-batches a step, or ZeRO 1 "
      "with "
      "pipeline stages across the nodes, send less over the network (see --suggest)",
      seconds, cluster->nodes, now, WaitsOf(*request.prediction));
}

}  // namespace

std::vector<std::string> AdviceOn(const AdviceOnRequest& request) {
  std::vector<std::string> advice;
  for (const std::optional<std::string>& text : {OfStage(request), OfNodes(request)}) {
    if (text) advice.push_back(*text);
  }
  return advice;
}

}  // namespace trireme
