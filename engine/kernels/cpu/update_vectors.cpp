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
