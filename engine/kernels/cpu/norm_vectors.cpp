#include <algorithm>
#include <cmath>

#include "engine/kernels/cpu/vectors.h"

namespace trireme::kernels {
namespace {

// Sum of f(i) for i in [0, count) in kLanes fixed partial sums. The remainder goes to lanes 0.. as a whole vector with
// zeros would.
template <typename A, typename F>
inline A LaneSum(int64_t count, F f) {
  A lanes[kLanes] = {};
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) lanes[k] += f(i + k);
  }
  for (int64_t i = whole; i < count; ++i) lanes[i - whole] += f(i);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

constexpr int64_t kRowBlock = 64;  // rows summed before they join the total: keeps the error of long sums small

}  // namespace

template <typename Level, typename T>
void NormVectors<Level, T>::Forward(const T* x, const T* weight, const T* bias, A epsilon, T* y, A* mean, A* rstd,
                                    int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
    A average = 0;
    if (mean != nullptr) {
      average = LaneSum<A>(width, [&](int64_t i) { return Load(x[i]); }) / static_cast<A>(width);
      mean[row] = average;
    }
    const A squares = LaneSum<A>(width, [&](int64_t i) {
      const A centred = Load(x[i]) - average;
      return centred * centred;
    });
    const A scale = A(1) / std::sqrt(squares / static_cast<A>(width) + epsilon);
    rstd[row] = scale;
    if (bias == nullptr) {
      for (int64_t i = 0; i < width; ++i) Store((Load(x[i]) - average) * scale * Load(weight[i]), y[i]);
    } else {
      for (int64_t i = 0; i < width; ++i) Store((Load(x[i]) - average) * scale * Load(weight[i]) + Load(bias[i]), y[i]);
    }
  }
}

template <typename Level, typename T>
void NormVectors<Level, T>::Backward(const T* dy, const T* x, const A* mean, const A* rstd, const T* weight,
                                     const T* residual, T* dx, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row, x += width, dy += width, dx += width) {
    const A scale = rstd[row];
    A average = 0, sum = 0;
    if (mean != nullptr) {
      average = mean[row];
      sum = LaneSum<A>(width, [&](int64_t i) { return Load(dy[i]) * Load(weight[i]); }) / static_cast<A>(width);
    }
    const A dot =
        LaneSum<A>(width, [&](int64_t i) { return Load(dy[i]) * Load(weight[i]) * ((Load(x[i]) - average) * scale); }) /
        static_cast<A>(width);
    auto gradient = [&](int64_t i) {
      return (Load(dy[i]) * Load(weight[i]) - sum - (Load(x[i]) - average) * scale * dot) * scale;
    };
    if (residual == nullptr) {
      for (int64_t i = 0; i < width; ++i) Store(gradient(i), dx[i]);
    } else {
      for (int64_t i = 0; i < width; ++i) Store(gradient(i) + Load(residual[i]), dx[i]);
      residual += width;
    }
  }
}

template <typename Level, typename T>
void NormVectors<Level, T>::WeightSums(const T* dy, const T* x, const A* mean, const A* rstd, int64_t rows,
                                       int64_t width, int64_t begin, int64_t end, A* dweight) {
  constexpr int64_t kColumns = 64;
  for (int64_t column = begin; column < end; column += kColumns) {
    const int64_t n = std::min(kColumns, end - column);
    A total[kColumns] = {};
    for (int64_t block = 0; block < rows; block += kRowBlock) {
      A sum[kColumns] = {};
      for (int64_t row = block; row < std::min(rows, block + kRowBlock); ++row) {
        const T* gradient = dy + row * width + column;
        const T* input = x + row * width + column;
        const A average = mean == nullptr ? A(0) : mean[row], scale = rstd[row];
        for (int64_t i = 0; i < n; ++i) sum[i] += Load(gradient[i]) * ((Load(input[i]) - average) * scale);
      }
      for (int64_t i = 0; i < n; ++i) total[i] += sum[i];
    }
    std::copy(total, total + n, dweight + (column - begin));
  }
}

template <typename Level, typename T>
void NormVectors<Level, T>::ColumnSums(const T* dy, int64_t rows, int64_t width, int64_t begin, int64_t end, A* sums) {
  constexpr int64_t kColumns = 64;
  for (int64_t column = begin; column < end; column += kColumns) {
    const int64_t n = std::min(kColumns, end - column);
    A total[kColumns] = {};
    for (int64_t block = 0; block < rows; block += kRowBlock) {
      A sum[kColumns] = {};
      for (int64_t row = block; row < std::min(rows, block + kRowBlock); ++row) {
        const T* gradient = dy + row * width + column;
        for (int64_t i = 0; i < n; ++i) sum[i] += Load(gradient[i]);
      }
      for (int64_t i = 0; i < n; ++i) total[i] += sum[i];
    }
    std::copy(total, total + n, sums + (column - begin));
  }
}

template struct NormVectors<TRIREME_KERNELS_LEVEL, double>;
template struct NormVectors<TRIREME_KERNELS_LEVEL, float>;
template struct NormVectors<TRIREME_KERNELS_LEVEL, BFloat16>;
template struct NormVectors<TRIREME_KERNELS_LEVEL, Float16>;

}  // namespace trireme::kernels
