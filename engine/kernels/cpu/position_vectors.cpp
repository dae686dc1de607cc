#include <algorithm>

#include "engine/kernels/cpu/vectors.h"

namespace trireme::kernels {

template <typename Level, typename T>
void PositionVectors<Level, T>::Rotate(T* head, const A* cosines, const A* sines, int64_t half, bool inverse) {
  T* other = head + half;
  const A sign = inverse ? A(-1) : A(1);
  TRIREME_INDEPENDENT
  for (int64_t i = 0; i < half; ++i) {
    const A first = Load(head[i]), second = Load(other[i]), cosine = cosines[i], sine = sign * sines[i];
    Store(first * cosine - second * sine, head[i]);
    Store(second * cosine + first * sine, other[i]);
  }
}

template <typename Level, typename T>
void PositionVectors<Level, T>::Dropout(const T* x, const T* residual, T* y, int64_t width, const DropoutMask& mask,
                                        uint32_t position, uint32_t sample) {
  constexpr int kBlocks = 16, kChannels = 4 * kBlocks;
  const A scale = static_cast<A>(mask.scale);
  uint32_t keep[kChannels];  // all bits set where kept
  for (int64_t begin = 0; begin < width; begin += kChannels) {
    const uint32_t first = mask.first_block + static_cast<uint32_t>(begin / 4);
    for (int block = 0; block < kBlocks; ++block) {
      const PhiloxWords random =
          Philox({{first + static_cast<uint32_t>(block), position, sample, mask.layer_site}}, mask.key_0, mask.key_1);
      for (int k = 0; k < 4; ++k) keep[4 * block + k] = random.words[k] >= mask.threshold ? ~0u : 0u;
    }
    const int64_t end = std::min<int64_t>(width - begin, kChannels);
    auto value = [&](int64_t i) { return keep[i] != 0 ? Load(x[begin + i]) * scale : A(0); };
    if (residual == nullptr) {
      TRIREME_INDEPENDENT
      for (int64_t i = 0; i < end; ++i) Store(value(i), y[begin + i]);
    } else {
      TRIREME_INDEPENDENT
      for (int64_t i = 0; i < end; ++i) Store(Load(residual[begin + i]) + value(i), y[begin + i]);
    }
  }
}

template struct PositionVectors<TRIREME_KERNELS_LEVEL, double>;
template struct PositionVectors<TRIREME_KERNELS_LEVEL, float>;
template struct PositionVectors<TRIREME_KERNELS_LEVEL, BFloat16>;
template struct PositionVectors<TRIREME_KERNELS_LEVEL, Float16>;

}  // namespace trireme::kernels
