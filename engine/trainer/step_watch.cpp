#include "engine/trainer/step_watch.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/log.h"

namespace trireme {
namespace {

constexpr size_t kKeptScales = 20;

double Unsigned(double value) { return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value; }

std::string NotFinite(const StepResult& result) {
  return fmt::format("loss {}, gradient norm {}", Unsigned(result.loss), Unsigned(result.grad_norm));
}

[[noreturn]] void Fail(const char* id, std::string what, const std::string& found, int64_t step,
                       const std::string& fix) {
  if (!found.empty()) what += "; " + found;
  throw Error(ErrorCode::kCheckFailed, id, std::move(what), fmt::format("step {}", step), fix);
}

// At the floor a smaller scale is no cure; what is depends on where the first infinity arose.
std::string CureAtFloor(const StepResult& result) {
  if (!std::isfinite(result.loss)) {
    return "forward itself leaves fp16's range (65504), whatever the scale: look for weights or data that are not "
           "finite, or train in bf16";
  }
  return "forward is finite and gradients are not: lower the learning rate and resume from the last checkpoint, lower "
         "fp16.min_loss_scale, or train in bf16";
}

}  // namespace

LossScaling LossScalingOf(const Config& config) {
  const Fp16Config& fp16 = config.fp16;
  LossScaling scaling;
  scaling.dynamic = fp16.enabled && fp16.loss_scale == 0;
  scaling.window = static_cast<double>(fp16.loss_scale_window);
  scaling.hysteresis = static_cast<double>(fp16.hysteresis);
  scaling.consecutive_hysteresis = fp16.consecutive_hysteresis;
  scaling.floor = fp16.min_loss_scale;
  scaling.growth_quirk = config.trireme.scale_growth_quirk;
  if (config.zero_optimization.zero_stage == 0) {  // DeepSpeed's wrapper there has neither hysteresis nor an end
    scaling.hysteresis = 1;
    scaling.ends_at_floor = false;
  }
  return scaling;
}

double InitialLossScale(const Config& config) {
  if (!config.fp16.enabled) return 1;
  return config.fp16.loss_scale > 0 ? config.fp16.loss_scale
                                    : std::ldexp(1.0, static_cast<int>(config.fp16.initial_scale_power));
}

double ClipFactor(double grad_norm, double max_norm) {  // as FinishStepStats has it (engine/kernels/step_stats.h)
  return max_norm > 0 && std::isfinite(grad_norm) ? std::min(1.0, max_norm / (grad_norm + 1e-6)) : 1;
}

StepWatch::StepWatch(const Config& config, bool speaks, Diagnose diagnose)
    : speaks_(speaks),
      diagnose_(std::move(diagnose)),
      most_skips_(config.trireme.max_skipped_steps),
      max_norm_(config.gradient_clipping),
      scales_{InitialLossScale(config)} {
  if (config.fp16.enabled) {
    const LossScaling scaling = LossScalingOf(config);
    floor_ = scaling.floor;
    kind_ = scaling.dynamic ? Kind::kDynamicScale : Kind::kStaticScale;
    if (scaling.dynamic) most_skips_ = std::max(most_skips_, static_cast<int64_t>(scaling.hysteresis));
  } else {
    kind_ = config.bf16.enabled ? Kind::kBf16 : Kind::kWide;
  }
}

void StepWatch::Check(int64_t step, const StepResult& result) {
  const double scale = scales_.back();
  scales_.push_back(result.loss_scale);
  if (scales_.size() > kKeptScales) scales_.pop_front();
  if (!result.skipped) {
    if (result.loss_scale > scale && speaks_) log::Info("step {}: loss scale {} -> {}", step, scale, result.loss_scale);
    if (ClipFactor(result.grad_norm, max_norm_) < 1) ++clipped_;
    applied_ = true;
    in_a_row_ = without_cure_ = 0;
    return;
  }
  const std::string found = result.held && diagnose_ ? diagnose_(scale) : "";
  if (kind_ == Kind::kWide) {
    Fail("TRN005",
         fmt::format("loss {} or gradient norm {} is not finite; the weights were not changed by this step",
                     Unsigned(result.loss), Unsigned(result.grad_norm)),
         found, step, "lower the learning rate or look at the data of this step; resume from the last checkpoint");
  }
  ++in_a_row_;
  without_cure_ = result.loss_scale < scale ? 0 : without_cure_ + 1;
  ++(kind_ == Kind::kDynamicScale && !applied_ ? skips_.calibrating : skips_.later);
  if (result.scale_exhausted) {
    Fail("TRN007",
         fmt::format("{} with the loss scale at {}, the smallest allowed; skipped steps in a row: {}; the last loss "
                     "scales: {}",
                     NotFinite(result), scale, in_a_row_, fmt::join(scales_.begin(), scales_.end() - 1, " ")),
         found, step, CureAtFloor(result));
  }
  if (speaks_) TellSkip(step, result, found);
  if (without_cure_ < most_skips_) return;
  const std::string at = kind_ == Kind::kBf16 ? "" : fmt::format(" at loss scale {}", result.loss_scale);
  Fail("TRN006", fmt::format("{} steps in a row were skipped{}: {}", in_a_row_, at, NotFinite(result)), found, step,
       kind_ == Kind::kStaticScale
           ? "set fp16.loss_scale to 0, the dynamic scale, or lower; or resume from an earlier checkpoint with a lower "
             "learning rate"
           : "resume from an earlier checkpoint with a lower learning rate");
}

void StepWatch::TellSkip(int64_t step, const StepResult& result, const std::string& found) {
  const double before = *(scales_.end() - 2);
  std::string scale;
  if (kind_ == Kind::kStaticScale) {
    scale = fmt::format(" | loss scale {} (static)", before);
  } else if (kind_ == Kind::kDynamicScale) {
    scale = fmt::format(" | loss scale {} -> {}", before, result.loss_scale);
    if (result.loss_scale == before)
      scale += before == floor_ ? ", its floor" : fmt::format(" (hysteresis now {})", result.hysteresis);
  }
  const std::string line = fmt::format("step {}: skipped, {}{} | skipped {}, {} in a row{}{}", step, NotFinite(result),
                                       scale, result.skipped_steps, in_a_row_, found.empty() ? "" : " | ", found);
  if (kind_ == Kind::kDynamicScale && !applied_ && found.empty()) {
    log::Info("{} (finding the scale: normal at the start)", line);
  } else {
    log::Warn("{}", line);
  }
}

}  // namespace trireme
