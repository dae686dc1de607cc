// Adam over flat buffers: bound by memory, so written to move each byte once. States are fetched ahead by hand, since
// the processor's own prefetchers lose count of five streams; weights, which nobody reads soon, go past the caches.
#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "engine/kernels/cpu/vectors.h"

namespace trireme::kernels {
namespace {

constexpr int64_t kLine = 64;    // bytes of a cache line
constexpr int64_t kGroup = 32;   // elements between two fetches; in 16 bits one line
constexpr int64_t kAhead = 512;  // elements from use to fetch; measured: 256 and 2048 are slower

template <typename T>
inline void FetchGroup(const T* group) {
  for (int64_t byte = 0; byte < kGroup * static_cast<int64_t>(sizeof(T)); byte += kLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(group) + byte);
  }
}

// Both begin at a line.
template <typename W>
inline void StreamGroup(const W* from, W* to) {
#if defined(__AVX512F__)
  using Vector = __m512i;
#elif defined(__AVX__)
  using Vector = __m256i;
#elif defined(__SSE2__)
  using Vector = __m128i;
#else
  using Vector = char[kGroup * sizeof(W)];
#endif
  for (size_t i = 0; i < kGroup * sizeof(W) / sizeof(Vector); ++i) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<Vector*>(to) + i, reinterpret_cast<const Vector*>(from)[i]);
#elif defined(__AVX__)
    _mm256_stream_si256(reinterpret_cast<Vector*>(to) + i, reinterpret_cast<const Vector*>(from)[i]);
#elif defined(__SSE2__)
    _mm_stream_si128(reinterpret_cast<Vector*>(to) + i, reinterpret_cast<const Vector*>(from)[i]);
#else
    std::memcpy(to, from, sizeof(Vector));
#endif
  }
}

// Rounded in the order of DeepSpeed's CPU Adam: one division and one root an element, where the order of its fused Adam
// has three divisions.
template <typename M>
class Rule {
 public:
  explicit Rule(const AdamStep<M>& step) : s_(step), keep1_(M(1) - step.beta1), keep2_(M(1) - step.beta2) {}

  template <typename G>
  M Update(M& master, M& exp_avg, M& exp_avg_sq, G gradient) const {
    const M p = master;
    const M g = static_cast<M>(Load(gradient)) * s_.gradient_factor + s_.coupled_decay * p;
    const M m = s_.beta1 * exp_avg + keep1_ * g;
    const M v = s_.beta2 * exp_avg_sq + keep2_ * g * g;
    exp_avg = m;
    exp_avg_sq = v;
    const M decayed = p - s_.decoupled_decay * p;
    return master = decayed - s_.step_size * (m / (std::sqrt(v) * s_.inverse_root + s_.epsilon));
  }

 private:
  const AdamStep<M> s_;  // a copy: the compiler sees that stores do not change it
  const M keep1_, keep2_;
};

// Elements before the first and after the last whole group. A function of its own keeps the registers of the loop over
// groups free.
template <typename M, typename G, typename W>
[[gnu::noinline]] void UpdateFew(M* __restrict master, M* __restrict exp_avg, M* __restrict exp_avg_sq,
                                 const G* __restrict gradient, W* __restrict weights, int64_t begin, int64_t end,
                                 const AdamStep<M>& step) {
  const Rule<M> rule(step);
  for (int64_t i = begin; i < end; ++i) {
    const M updated = rule.Update(master[i], exp_avg[i], exp_avg_sq[i], gradient[i]);
    if (weights != nullptr) Store(updated, weights[i]);
  }
}

}  // namespace

template <typename Level, typename M, typename G, typename W>
void AdamVectors<Level, M, G, W>::Update(M* __restrict master, M* __restrict exp_avg, M* __restrict exp_avg_sq,
                                         const G* __restrict gradient, W* __restrict weights, int64_t count,
                                         const AdamStep<M>& step, bool stream) {
  const Rule<M> rule(step);
  int64_t i = 0;
  if (weights != nullptr) {  // to the beginning of a line
    const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(weights) % kLine);
    i = std::min(count, (kLine - past) % kLine / static_cast<int64_t>(sizeof(W)));
  }
  UpdateFew(master, exp_avg, exp_avg_sq, gradient, weights, 0, i, step);
  for (; i + kGroup <= count; i += kGroup) {
    FetchGroup(master + i + kAhead);
    FetchGroup(exp_avg + i + kAhead);
    FetchGroup(exp_avg_sq + i + kAhead);
    FetchGroup(gradient + i + kAhead);
    alignas(kLine) W updated[kGroup];
    TRIREME_INDEPENDENT
    for (int64_t k = 0; k < kGroup; ++k) {
      Store(rule.Update(master[i + k], exp_avg[i + k], exp_avg_sq[i + k], gradient[i + k]), updated[k]);
    }
    if (weights == nullptr) continue;
    if (stream) {
      StreamGroup(updated, weights + i);
    } else {
      std::memcpy(weights + i, updated, sizeof(updated));
    }
  }
  UpdateFew(master, exp_avg, exp_avg_sq, gradient, weights, i, count, step);
#if defined(__SSE2__)
  if (stream) _mm_sfence();  // before other threads, or a GPU, are told that the weights are there
#endif
}

template struct AdamVectors<TRIREME_KERNELS_LEVEL, double, double, double>;
template struct AdamVectors<TRIREME_KERNELS_LEVEL, float, float, float>;
template struct AdamVectors<TRIREME_KERNELS_LEVEL, float, float, BFloat16>;
template struct AdamVectors<TRIREME_KERNELS_LEVEL, float, float, Float16>;
template struct AdamVectors<TRIREME_KERNELS_LEVEL, float, BFloat16, float>;
template struct AdamVectors<TRIREME_KERNELS_LEVEL, float, BFloat16, BFloat16>;
template struct AdamVectors<TRIREME_KERNELS_LEVEL, float, BFloat16, Float16>;
template struct AdamVectors<TRIREME_KERNELS_LEVEL, float, Float16, float>;
template struct AdamVectors<TRIREME_KERNELS_LEVEL, float, Float16, BFloat16>;
template struct AdamVectors<TRIREME_KERNELS_LEVEL, float, Float16, Float16>;

}  // namespace trireme::kernels
