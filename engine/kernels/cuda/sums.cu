// Sums in two stages whose order depends on the shape alone: blocks write partial sums, a second kernel adds them in
// order.
#include <algorithm>
#include <string>

#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/step_state.h"

namespace trireme::kernels::cuda {
namespace {

constexpr int kLanes = 32, kRowLanes = 8;

// Block: kLanes packs of columns, kRowLanes rows at a time over its share of the rows. partial: [2][row blocks][width],
// dweight first.
template <typename T, int N, bool kNorm>
__global__ void PartialColumnSums(const T* __restrict__ dy, const T* __restrict__ x, const Acc<T>* __restrict__ mean,
                                  const Acc<T>* __restrict__ rstd, Acc<T>* __restrict__ partial, int64_t rows,
                                  int64_t width) {
  using A = Acc<T>;
  __shared__ A shared[kRowLanes][kLanes * N + 1];
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x) * N;
  const int64_t share = (rows + gridDim.y - 1) / gridDim.y;
  const int64_t end = min(rows, (static_cast<int64_t>(blockIdx.y) + 1) * share);
  A weight_sum[N] = {}, bias_sum[N] = {};
  if (column < width) {
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * share + threadIdx.y; row < end; row += kRowLanes) {
      const Pack<T, N> gradient = LoadPack<T, N>(dy + row * width + column);
      Pack<T, N> input;
      A average = 0, scale = 0;
      if (kNorm) {
        input = LoadPack<T, N>(x + row * width + column);
        if (mean != nullptr) average = mean[row];
        scale = rstd[row];
      }
#pragma unroll
      for (int k = 0; k < N; ++k) {
        bias_sum[k] += Load(gradient.values[k]);
        if (kNorm) weight_sum[k] += Load(gradient.values[k]) * ((Load(input.values[k]) - average) * scale);
      }
    }
  }
  for (int which = kNorm ? 0 : 1; which < 2; ++which) {
#pragma unroll
    for (int k = 0; k < N; ++k) shared[threadIdx.y][threadIdx.x * N + k] = which == 0 ? weight_sum[k] : bias_sum[k];
    __syncthreads();
    if (threadIdx.y == 0 && column < width) {
      A* out = partial + (static_cast<int64_t>(which) * gridDim.y + blockIdx.y) * width + column;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        A total = 0;
        for (int lane = 0; lane < kRowLanes; ++lane) total += shared[lane][threadIdx.x * N + k];
        out[k] = total;
      }
    }
    __syncthreads();
  }
}

template <typename A, typename G>
__global__ void FinishColumnSums(const A* __restrict__ partial, G* dweight, G* dbias, int64_t row_blocks, int64_t width,
                                 bool add) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= width) return;
  for (int which = 0; which < 2; ++which) {
    G* const target = which == 0 ? dweight : dbias;
    if (target == nullptr) continue;
    A total = 0;
    for (int64_t block = 0; block < row_blocks; ++block)
      total += partial[(which * row_blocks + block) * width + column];
    G* out = target + column;
    Store(add ? total + static_cast<A>(Load(*out)) : total, *out);
  }
}

template <typename T, int N>
__global__ void PartialSquares(const T* __restrict__ values, int64_t count, double* __restrict__ partial) {
  __shared__ double shared[32];
  const int64_t packs = count / N, stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  double sum = 0;
  for (int64_t i = first; i < packs; i += stride) {
    const Pack<T, N> pack = LoadPack<T, N>(values + i * N);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const double value = static_cast<double>(Load(pack.values[k]));
      sum += value * value;
    }
  }
  for (int64_t i = packs * N + first; i < count; i += stride) {
    const double value = static_cast<double>(Load(values[i]));
    sum += value * value;
  }
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void FinishSquares(const double* __restrict__ partial, int blocks, double* state) {
  __shared__ double shared[32];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += static_cast<int>(blockDim.x)) sum += partial[i];
  sum = BlockSum(sum, shared);
  if (threadIdx.x != 0) return;
  state[kSumOfSquares] += sum;
  if (!isfinite(sum)) state[kNonFinite] = 1;
}

void CheckScratch(const Scratch& scratch, int64_t bytes) {
  TRIREME_CHECK(bytes <= scratch.bytes,
                "partial sums take " + std::to_string(bytes) + " bytes of " + std::to_string(scratch.bytes));
}

}  // namespace

void ColumnSums(Element type, Element gradient_type, const void* dy, const void* x, const void* mean, const void* rstd,
                void* dweight, void* dbias, int64_t rows, int64_t width, bool add, Scratch scratch,
                cudaStream_t stream) {
  ForElementAndGradient(type, gradient_type, [&](auto element, auto gradient) {
    using T = decltype(element);
    using G = decltype(gradient);
    auto run = [&](auto size) {
      constexpr int N = decltype(size)::value;
      const int64_t column_blocks = (width + kLanes * N - 1) / (kLanes * N);
      const int64_t row_blocks = std::max<int64_t>(1, std::min<int64_t>(528 / column_blocks, (rows + 63) / 64));
      CheckScratch(scratch, 2 * row_blocks * width * static_cast<int64_t>(sizeof(Acc<T>)));
      auto* partial = static_cast<Acc<T>*>(scratch.data);
      const dim3 grid(static_cast<unsigned>(column_blocks), static_cast<unsigned>(row_blocks)),
          block(kLanes, kRowLanes);
      const auto* gradients = static_cast<const T*>(dy);
      if (x != nullptr) {
        PartialColumnSums<T, N, true>
            <<<grid, block, 0, stream>>>(gradients, static_cast<const T*>(x), static_cast<const Acc<T>*>(mean),
                                         static_cast<const Acc<T>*>(rstd), partial, rows, width);
      } else {
        PartialColumnSums<T, N, false>
            <<<grid, block, 0, stream>>>(gradients, nullptr, nullptr, nullptr, partial, rows, width);
      }
      FinishColumnSums<Acc<T>, G><<<GridFor(width, 128, INT32_MAX), 128, 0, stream>>>(
          partial, static_cast<G*>(dweight), static_cast<G*>(dbias), row_blocks, width, add);
    };
    if (width % kPackSize<T> == 0 && Aligned(dy, 16) && Aligned(x, 16)) {
      run(std::integral_constant<int, kPackSize<T>>{});
    } else {
      run(std::integral_constant<int, 1>{});
    }
  });
  CheckLaunch("ColumnSums");
}

void SumOfSquares(Element type, const void* values, int64_t count, double* state, Scratch scratch,
                  cudaStream_t stream) {
  if (count == 0) return;
  const unsigned blocks = GridFor(count, 4096, 132 * 4);
  CheckScratch(scratch, static_cast<int64_t>(blocks) * 8);
  auto* partial = static_cast<double*>(scratch.data);
  ForElement(type, [&](auto element) {
    using T = decltype(element);
    if (Aligned(values, 16)) {
      PartialSquares<T, kPackSize<T>><<<blocks, 512, 0, stream>>>(static_cast<const T*>(values), count, partial);
    } else {
      PartialSquares<T, 1><<<blocks, 512, 0, stream>>>(static_cast<const T*>(values), count, partial);
    }
  });
  FinishSquares<<<1, 512, 0, stream>>>(partial, static_cast<int>(blocks), state);
  CheckLaunch("SumOfSquares");
}

}  // namespace trireme::kernels::cuda
