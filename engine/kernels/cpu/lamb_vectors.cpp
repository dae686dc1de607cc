#include <cmath>

#include "engine/kernels/cpu/vectors.h"

namespace trireme::kernels {
namespace {

// Both halves of a step make it, out of equal numbers: equal bits.
template <typename M>
inline M StepOf(M p, M first, M second, const LambStep<M>& s) {
  const M root = s.epsilon_inside_root ? std::sqrt(second + s.epsilon) : std::sqrt(second) + s.epsilon;
  return first / root + s.weight_decay * p;
}

}  // namespace

template <typename Level, typename M, typename G>
void LambMomentVectors<Level, M, G>::Update(const M* __restrict master, M* __restrict exp_avg, M* __restrict exp_avg_sq,
                                            const G* __restrict gradient, M* __restrict u, int64_t count,
                                            const LambStep<M>& step) {
  const LambStep<M> s = step;
  const M keep1 = M(1) - s.beta1, keep2 = M(1) - s.beta2;
  for (int64_t i = 0; i < count; ++i) {
    const M g = static_cast<M>(Load(gradient[i])) * s.gradient_factor;
    const M m = s.beta1 * exp_avg[i] + keep1 * g;
    const M v = s.beta2 * exp_avg_sq[i] + keep2 * g * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    u[i] = StepOf(master[i], m, v, s);
  }
}

template <typename Level, typename M, typename W>
void LambVectors<Level, M, W>::Apply(M* __restrict master, const M* __restrict exp_avg, const M* __restrict exp_avg_sq,
                                     W* __restrict weights, int64_t count, const LambStep<M>& step, M rate) {
  const LambStep<M> s = step;
  auto element = [&](int64_t i) {
    const M p = master[i];
    return master[i] = p - rate * StepOf(p, exp_avg[i], exp_avg_sq[i], s);
  };
  if (weights == nullptr) {
    for (int64_t i = 0; i < count; ++i) element(i);
  } else {
    for (int64_t i = 0; i < count; ++i) Store(element(i), weights[i]);
  }
}

template struct LambMomentVectors<TRIREME_KERNELS_LEVEL, double, double>;
template struct LambMomentVectors<TRIREME_KERNELS_LEVEL, float, float>;
template struct LambMomentVectors<TRIREME_KERNELS_LEVEL, float, BFloat16>;
template struct LambMomentVectors<TRIREME_KERNELS_LEVEL, float, Float16>;
template struct LambVectors<TRIREME_KERNELS_LEVEL, double, double>;
template struct LambVectors<TRIREME_KERNELS_LEVEL, float, float>;
template struct LambVectors<TRIREME_KERNELS_LEVEL, float, BFloat16>;
template struct LambVectors<TRIREME_KERNELS_LEVEL, float, Float16>;

}  // namespace trireme::kernels
