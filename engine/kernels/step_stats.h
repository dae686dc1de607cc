// The arithmetic of FinishStepStats, shared by CPU and GPU. Plain: no LibTorch, no CUDA header.
#pragma once
#include <cmath>

#include "engine/kernels/step_state.h"

#ifdef __CUDACC__
#define TRIREME_HOST_DEVICE __host__ __device__
#else
#define TRIREME_HOST_DEVICE
#endif

namespace trireme::kernels {

TRIREME_HOST_DEVICE inline void FinishStepStatsOn(double* state, double nominal_tokens, double max_norm,
                                                  bool skip_non_finite) {
  const double tokens = state[kTokens];
  const bool any = tokens > 0;
  const double loss = any ? state[kLossSum] / tokens : 0;
  const double scale = any ? nominal_tokens / (tokens * state[kLossScale]) : 0;
  const double norm = any ? sqrt(state[kSumOfSquares]) * scale : 0;
  const double clip = max_norm > 0 ? max_norm / (norm + 1e-6) : 1;
  // loss - loss is 0 for finite numbers only, in host and device code alike.
  const bool finite = !(state[kNonFinite] > 0) && loss - loss == 0 && norm - norm == 0;
  const bool skip = !any || (skip_non_finite && !finite);
  state[kLoss] = loss;
  state[kGradientNorm] = norm;
  state[kUpdateFactor] = skip ? 0 : (clip < 1 ? clip * scale : scale);
  state[kSkip] = skip ? 1 : 0;
  state[skip ? kSkippedSteps : kAppliedSteps] += 1;
  state[kStepTokens] = tokens;
  state[kLossSum] = state[kTokens] = state[kSumOfSquares] = state[kNonFinite] = 0;
}

}  // namespace trireme::kernels
