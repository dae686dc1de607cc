#include <cmath>

#include "engine/kernels/cpu/vectors.h"

namespace trireme::kernels {

template <typename Level, typename M, typename G, typename W>
void UpdateVectors<Level, M, G, W>::Sgd(M* __restrict master, M* __restrict buffer, const G* __restrict gradient,
                                        W* __restrict weights, int64_t count, const SgdStep<M>& step) {
  const SgdStep<M> s = step;
  for (int64_t i = 0; i < count; ++i) {
    const M p = master[i];
    const M g = static_cast<M>(Load(gradient[i])) * s.gradient_factor + s.weight_decay * p;
    M u = g;
    if (buffer != nullptr) {
      const M b = s.first ? g : s.momentum * buffer[i] + s.keep * g;
      buffer[i] = b;
      u = s.nesterov ? g + s.momentum * b : b;
    }
    const M updated = p - s.learning_rate * u;
    master[i] = updated;
    if (weights != nullptr) Store(updated, weights[i]);
  }
}

template <typename Level, typename M, typename G, typename W>
void UpdateVectors<Level, M, G, W>::Adagrad(M* __restrict master, M* __restrict sum, const G* __restrict gradient,
                                            W* __restrict weights, int64_t count, const AdagradStep<M>& step) {
  const AdagradStep<M> s = step;
  auto element = [&](int64_t i) {
    const M p = master[i];
    const M g = static_cast<M>(Load(gradient[i])) * s.gradient_factor + s.weight_decay * p;
    const M squares = sum[i] + g * g;
    sum[i] = squares;
    return master[i] = p - s.learning_rate * g / (std::sqrt(squares) + s.epsilon);
  };
  if (weights == nullptr) {
    for (int64_t i = 0; i < count; ++i) element(i);
  } else {
    for (int64_t i = 0; i < count; ++i) Store(element(i), weights[i]);
  }
}

template <typename Level, typename M, typename G, typename W>
void UpdateVectors<Level, M, G, W>::Lion(M* __restrict master, M* __restrict exp_avg, const G* __restrict gradient,
                                         W* __restrict weights, int64_t count, const LionStep<M>& step) {
  const LionStep<M> s = step;
  const M keep1 = M(1) - s.beta1, keep2 = M(1) - s.beta2, keep = M(1) - s.learning_rate * s.weight_decay;
  auto element = [&](int64_t i) {
    const M g = static_cast<M>(Load(gradient[i])) * s.gradient_factor, m = exp_avg[i];
    const M c = s.beta1 * m + keep1 * g;
    const M u = c > 0 ? s.learning_rate : (c < 0 ? -s.learning_rate : c);  // 0, or not a number
    exp_avg[i] = s.beta2 * m + keep2 * g;
    return master[i] = master[i] * keep - u;
  };
  if (weights == nullptr) {
    for (int64_t i = 0; i < count; ++i) element(i);
  } else {
    for (int64_t i = 0; i < count; ++i) Store(element(i), weights[i]);
  }
}

template struct UpdateVectors<TRIREME_KERNELS_LEVEL, double, double, double>;
template struct UpdateVectors<TRIREME_KERNELS_LEVEL, float, float, float>;
template struct UpdateVectors<TRIREME_KERNELS_LEVEL, float, float, BFloat16>;
template struct UpdateVectors<TRIREME_KERNELS_LEVEL, float, float, Float16>;
template struct UpdateVectors<TRIREME_KERNELS_LEVEL, float, BFloat16, float>;
template struct UpdateVectors<TRIREME_KERNELS_LEVEL, float, BFloat16, BFloat16>;
template struct UpdateVectors<TRIREME_KERNELS_LEVEL, float, BFloat16, Float16>;
template struct UpdateVectors<TRIREME_KERNELS_LEVEL, float, Float16, float>;
template struct UpdateVectors<TRIREME_KERNELS_LEVEL, float, Float16, BFloat16>;
template struct UpdateVectors<TRIREME_KERNELS_LEVEL, float, Float16, Float16>;

}  // namespace trireme::kernels
