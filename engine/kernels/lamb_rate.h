// How far a LAMB step goes along u, shared by CPU and GPU. Plain: no LibTorch, no CUDA header.
#pragma once
#include <cmath>

#include "engine/kernels/host_device.h"

namespace trireme::kernels {

struct LambRateOptions {
  bool bias_correction;
  double max_coefficient, min_coefficient;
};

// a r of kernels.h, in double. beta1, beta2: as the moments took them (rounded to their type). squares: of p and u.
TRIREME_HOST_DEVICE inline double LambRate(double learning_rate, double t, double beta1, double beta2,
                                           const double* squares, const LambRateOptions& options) {
  const double a =
      options.bias_correction ? learning_rate * sqrt(1 - pow(beta2, t)) / (1 - pow(beta1, t)) : learning_rate;
  if (squares[0] == 0 || squares[1] == 0) return a;
  const double ratio = sqrt(squares[0]) / sqrt(squares[1]);
  if (ratio > options.max_coefficient) return a * options.max_coefficient;
  if (ratio < options.min_coefficient) return a * options.min_coefficient;
  return a * ratio;  // not a number stays one
}

}  // namespace trireme::kernels
