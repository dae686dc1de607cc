// The arithmetic of FinishStepStats, shared by CPU and GPU. Plain: no LibTorch, no CUDA header.
#pragma once
#include <cmath>

#include "engine/kernels/host_device.h"
#include "engine/kernels/step_state.h"

namespace trireme::kernels {

// After DeepSpeed's DynamicLossScaler.update_scale. Its test (iteration - last overflow - 1) % window == 0, not at 0,
// is a count of steps here: from the start, and after an overflow, window + 1 clean steps double the scale, then every
// window.
TRIREME_HOST_DEVICE inline void UpdateLossScale(double* state, const LossScaling& scaling, bool overflow) {
  if (!scaling.dynamic) return;
  if (overflow) {
    if (scaling.hysteresis == 1 || state[kHysteresis] == 1) {
      const double half = state[kLossScale] / 2;
      if (state[kLossScale] == scaling.floor && scaling.ends_at_floor) state[kScaleExhausted] = 1;
      state[kLossScale] = half > scaling.floor ? half : scaling.floor;
    } else {
      state[kHysteresis] -= 1;
    }
    state[kGrowthTracker] = 0;
    return;
  }
  if (scaling.consecutive_hysteresis) state[kHysteresis] = scaling.hysteresis;
  if (state[kGrowthTracker] >= scaling.window) {
    state[kHysteresis] = scaling.hysteresis;
    state[kLossScale] *= 2;
    state[kGrowthTracker] = 0;
  }
  state[kGrowthTracker] += 1;
}

TRIREME_HOST_DEVICE inline bool HoldsSkip(const LossScaling& scaling, double loss, double scale) {
  return !scaling.dynamic || loss - loss != 0 || scale <= scaling.floor;
}

TRIREME_HOST_DEVICE inline void FinishStepStatsOn(double* state, const StepStatsOptions& options) {
  if (state[kHeld] > 0) {
    state[kUpdateFactor] = 0;
    state[kSkip] = 1;
    state[kLossSum] = state[kTokens] = state[kSumOfSquares] = state[kNonFinite] = 0;
    return;
  }
  const double tokens = state[kTokens];
  const bool any = tokens > 0;
  const double loss = any ? state[kLossSum] / tokens : 0;
  const double old_scale = state[kLossScale];
  double scale = any ? options.nominal_tokens / (tokens * old_scale) : 0;
  const double norm = any ? sqrt(state[kSumOfSquares]) * scale : 0;
  // loss - loss is 0 for finite numbers only, in host and device code alike.
  const bool finite = !(state[kNonFinite] > 0) && loss - loss == 0 && norm - norm == 0;
  const bool skip = !any || (options.skip_non_finite && !finite);
  if (any) UpdateLossScale(state, options.loss_scaling, !finite);
  // How much smaller than theirs the gradients are taken: 1, but for the quirk.
  const double quirk = options.loss_scaling.growth_quirk && finite ? old_scale / state[kLossScale] : 1;
  scale *= quirk;
  const double clip = options.max_norm > 0 ? options.max_norm / (norm * quirk + 1e-6) : 1;
  state[kLoss] = loss;
  state[kGradientNorm] = norm;
  state[kUpdateFactor] = skip ? 0 : (clip < 1 ? clip * scale : scale);
  state[kSkip] = skip ? 1 : 0;
  state[skip ? kSkippedSteps : kAppliedSteps] += 1;
  state[kStepTokens] = tokens;
  if (any && skip && options.holds_skips && HoldsSkip(options.loss_scaling, loss, old_scale)) state[kHeld] = 1;
  state[kLossSum] = state[kTokens] = state[kSumOfSquares] = state[kNonFinite] = 0;
}

}  // namespace trireme::kernels
