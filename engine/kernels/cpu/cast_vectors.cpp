#include <algorithm>

#include "engine/kernels/cpu/vectors.h"

namespace trireme::kernels {

template <typename Level, typename From, typename To>
void CastVectors<Level, From, To>::Copy(const From* source, To* destination, int64_t count) {
  for (int64_t i = 0; i < count; ++i) Store(Load(source[i]), destination[i]);
}

template <typename Level, typename From, typename To>
void CastVectors<Level, From, To>::Add(const From* source, To* destination, int64_t count) {
  for (int64_t i = 0; i < count; ++i) Store(Load(destination[i]) + Load(source[i]), destination[i]);
}

template <typename Level, typename T>
double SquareVectors<Level, T>::Sum(const T* values, int64_t count) {
  double lanes[kLanes] = {};
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) {
      const double value = static_cast<double>(Load(values[i + k]));
      lanes[k] += value * value;
    }
  }
  for (int64_t i = whole; i < count; ++i) {
    const double value = static_cast<double>(Load(values[i]));
    lanes[i - whole] += value * value;
  }
  double total = 0;
  for (double lane : lanes) total += lane;
  return total;
}

template struct SquareVectors<TRIREME_KERNELS_LEVEL, double>;
template struct SquareVectors<TRIREME_KERNELS_LEVEL, float>;
template struct SquareVectors<TRIREME_KERNELS_LEVEL, BFloat16>;
template struct SquareVectors<TRIREME_KERNELS_LEVEL, Float16>;

template struct CastVectors<TRIREME_KERNELS_LEVEL, double, double>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, double, float>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, double, BFloat16>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, double, Float16>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, float, double>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, float, float>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, float, BFloat16>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, float, Float16>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, BFloat16, double>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, BFloat16, float>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, BFloat16, BFloat16>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, BFloat16, Float16>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, Float16, double>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, Float16, float>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, Float16, BFloat16>;
template struct CastVectors<TRIREME_KERNELS_LEVEL, Float16, Float16>;

}  // namespace trireme::kernels
