#include <cmath>
#include <cstring>

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

// The standard normal distribution at x, and its density.
template <typename A>
struct Normal {
  A distribution, density;
};
inline Normal<double> NormalAt(double x) {
  return {0.5 * std::erfc(x * -0.70710678118654752440), 0.39894228040143267794 * std::exp(-0.5 * x * x)};
}
// erfc(z) = exp(-z^2) t Q(t), t = 1 / (1 + z / 2), for z = |x| / sqrt(2): Q is our minimax fit of degree 10 in relative
// error (6e-9 for z <= 18), so that the tail of negative x keeps its relative accuracy, and there is no branch.
inline Normal<float> NormalAt(float x) {
  const float z = std::fabs(x) * 0.707106781f;
  const float t = 1.0f / (1.0f + 0.5f * z);
  float q = 0.04255984323925941f;
  q = q * t + -0.23052756588097012f;
  q = q * t + 0.4817908903396054f;
  q = q * t + -0.4360255528533297f;
  q = q * t + 0.11345133628954285f;
  q = q * t + -0.04726403652026043f;
  q = q * t + 0.08851061270468295f;
  q = q * t + 0.17662186938843208f;
  q = q * t + 0.2466768815793122f;
  q = q * t + 0.2821115497942863f;
  q = q * t + 0.2820941777944816f;
  const float exponential = Exp(-0.5f * x * x);
  const float tail = 0.5f * exponential * (t * q);
  return {x < 0.0f ? tail : 1.0f - tail, 0.398942280f * exponential};
}

template <typename A>
inline A Logistic(A x) {
  return A(1) / (A(1) + Exp(-x));
}

}  // namespace

template <typename Level, typename T>
void ActivationVectors<Level, T>::GeluTanhForward(const T* fc, T* act, int64_t count) {
  TRIREME_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const A x = Load(fc[i]);
    Store(x / (A(1) + Exp(-TwiceInner(x))), act[i]);
  }
}

template <typename Level, typename T>
void ActivationVectors<Level, T>::GeluTanhBackward(const T* fc, const T* dact, T* dfc, int64_t count) {
  TRIREME_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    constexpr A kTwoRootTwoOverPi = A(1.5957691216057307117597842397375);
    const A x = Load(fc[i]);
    const A sigmoid = A(1) / (A(1) + Exp(-TwiceInner(x)));
    const A inner = kTwoRootTwoOverPi * (A(1) + A(3 * 0.044715) * x * x);
    Store(Load(dact[i]) * (sigmoid + x * sigmoid * (A(1) - sigmoid) * inner), dfc[i]);
  }
}

template <typename Level, typename T>
void ActivationVectors<Level, T>::GeluForward(const T* fc, T* act, int64_t count) {
  TRIREME_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const A x = Load(fc[i]);
    Store(x * NormalAt(x).distribution, act[i]);
  }
}

template <typename Level, typename T>
void ActivationVectors<Level, T>::GeluBackward(const T* fc, const T* dact, T* dfc, int64_t count) {
  TRIREME_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const A x = Load(fc[i]);
    const Normal<A> normal = NormalAt(x);
    Store(Load(dact[i]) * (normal.distribution + x * normal.density), dfc[i]);
  }
}

template <typename Level, typename T>
void ActivationVectors<Level, T>::SwiGluForward(const T* gate, const T* up, T* act, int64_t count) {
  TRIREME_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const A g = Load(gate[i]);
    Store(g * Logistic(g) * Load(up[i]), act[i]);
  }
}

template <typename Level, typename T>
void ActivationVectors<Level, T>::SwiGluBackward(const T* gate, const T* up, const T* dact, T* dgate, T* dup,
                                                 int64_t count) {
  TRIREME_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const A g = Load(gate[i]), u = Load(up[i]), d = Load(dact[i]);
    const A sigmoid = Logistic(g), silu = g * sigmoid;
    Store(d * u * (sigmoid + silu * (A(1) - sigmoid)), dgate[i]);
    Store(d * silu, dup[i]);
  }
}

template <typename Level, typename T>
void ActivationVectors<Level, T>::AddRows(const T* a, const T* b, T* sum, int64_t count) {
  if (a == nullptr || b == nullptr) {
    const T* source = a == nullptr ? b : a;
    if (source == nullptr) {
      std::memset(static_cast<void*>(sum), 0, static_cast<size_t>(count) * sizeof(T));
      return;
    }
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
template struct ActivationVectors<TRIREME_KERNELS_LEVEL, Float16>;

}  // namespace trireme::kernels
