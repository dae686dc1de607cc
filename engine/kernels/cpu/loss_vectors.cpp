#include <algorithm>
#include <cmath>

#include "engine/kernels/cpu/math.h"
#include "engine/kernels/cpu/vectors.h"

namespace trireme::kernels {
namespace {

template <typename A, typename T>
A Maximum(const T* values, int64_t count) {
  A lanes[kLanes];
  std::fill(lanes, lanes + kLanes, Load(values[0]));
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) {
      const A value = Load(values[i + k]);
      lanes[k] = value > lanes[k] ? value : lanes[k];
    }
  }
  for (int64_t i = whole; i < count; ++i) lanes[0] = std::max(lanes[0], static_cast<A>(Load(values[i])));
  return *std::max_element(lanes, lanes + kLanes);
}

// Sum of exp(value - shift): kLanes partial sums a block, blocks added in double.
template <typename A, typename T>
A ExpSum(const T* values, int64_t count, A shift) {
  constexpr int64_t kBlock = 2048;
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const int64_t whole = n - n % kLanes;
    A lanes[kLanes] = {};
    const T* block = values + begin;
    for (int64_t i = 0; i < whole; i += kLanes) {
      for (int k = 0; k < kLanes; ++k) lanes[k] += Exp(Load(block[i + k]) - shift);
    }
    for (int64_t i = whole; i < n; ++i) lanes[i - whole] += Exp(Load(block[i]) - shift);
    for (int k = 0; k < kLanes; ++k) total += static_cast<double>(lanes[k]);
  }
  return static_cast<A>(total);
}

}  // namespace

template <typename Level, typename T>
Acc<T> LossVectors<Level, T>::Row(T* logits, int64_t vocab, int64_t padded, int64_t label, A scale, bool write) {
  const A maximum = Maximum<A>(logits, vocab);
  const A sum = ExpSum<A>(logits, vocab, maximum);
  const A label_logit = Load(logits[label]);
  if (write) {
    const A factor = scale / sum;
    for (int64_t i = 0; i < vocab; ++i) Store(Exp(Load(logits[i]) - maximum) * factor, logits[i]);
    Store((Exp(label_logit - maximum) / sum - A(1)) * scale, logits[label]);
    for (int64_t i = vocab; i < padded; ++i) Store(A(0), logits[i]);
  }
  return std::log(sum) + (maximum - label_logit);
}

template struct LossVectors<TRIREME_KERNELS_LEVEL, double>;
template struct LossVectors<TRIREME_KERNELS_LEVEL, float>;
template struct LossVectors<TRIREME_KERNELS_LEVEL, BFloat16>;
template struct LossVectors<TRIREME_KERNELS_LEVEL, Float16>;

}  // namespace trireme::kernels
