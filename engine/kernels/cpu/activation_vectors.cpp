#include "engine/kernels/cpu/math.h"
#include "engine/kernels/cpu/vectors.h"

namespace trireme::kernels {
namespace {

// gelu(x) = x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the sigmoid keeps its relative
// accuracy for negative x.
template <typename A>
inline A TwiceInner(A x) {
  constexpr A kTwoRootTwoOverPi = A(1.5957691216057307117597842397375);
  return kTwoRootTwoOverPi * (x + A(0.044715) * x * x * x);
}

}  // namespace

template <typename Level, typename T>
void ActivationVectors<Level, T>::GeluForward(const T* fc, T* act, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const A x = Load(fc[i]);
    Store(x / (A(1) + Exp(-TwiceInner(x))), act[i]);
  }
}

template <typename Level, typename T>
void ActivationVectors<Level, T>::GeluBackward(const T* fc, const T* dact, T* dfc, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    constexpr A kTwoRootTwoOverPi = A(1.5957691216057307117597842397375);
    const A x = Load(fc[i]);
    const A sigmoid = A(1) / (A(1) + Exp(-TwiceInner(x)));
    const A inner = kTwoRootTwoOverPi * (A(1) + A(3 * 0.044715) * x * x);
    Store(Load(dact[i]) * (sigmoid + x * sigmoid * (A(1) - sigmoid) * inner), dfc[i]);
  }
}

template <typename Level, typename T>
void ActivationVectors<Level, T>::AddRows(const T* a, const T* b, T* sum, int64_t count) {
  if (a == nullptr || b == nullptr) {
    const T* source = a == nullptr ? b : a;
    for (int64_t i = 0; i < count; ++i) sum[i] = source[i];
    return;
  }
  for (int64_t i = 0; i < count; ++i) Store(Load(a[i]) + Load(b[i]), sum[i]);
}

template <typename Level, typename T>
void ActivationVectors<Level, T>::AddToSum(const T* row, A* sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += Load(row[i]);
}

template struct ActivationVectors<TRIREME_KERNELS_LEVEL, double>;
template struct ActivationVectors<TRIREME_KERNELS_LEVEL, float>;
template struct ActivationVectors<TRIREME_KERNELS_LEVEL, BFloat16>;

}  // namespace trireme::kernels
