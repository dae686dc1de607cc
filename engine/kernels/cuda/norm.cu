// LayerNorm and RMSNorm: one block a row, the row in registers, read once and written once.
#include <string>

#include "engine/kernels/cuda/device.cuh"

namespace trireme::kernels::cuda {
namespace {

template <typename T, int N, int kPacks>
__global__ void ForwardKernel(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                              Acc<T> epsilon, T* __restrict__ y, Acc<T>* __restrict__ mean, Acc<T>* __restrict__ rstd,
                              int packs) {  // mean and bias null: RMSNorm
  using A = Acc<T>;
  __shared__ A shared[32];
  const int64_t width = static_cast<int64_t>(packs) * N, row = blockIdx.x;
  A values[kPacks][N];
  A sum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int index = static_cast<int>(threadIdx.x) + p * static_cast<int>(blockDim.x);
    if (index >= packs) continue;
    const Pack<T, N> in = LoadPack<T, N>(x + row * width + static_cast<int64_t>(index) * N);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += values[p][k] = Load(in.values[k]);
  }
  const A average = mean == nullptr ? A(0) : BlockSum(sum, shared) / static_cast<A>(width);
  A squares = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (static_cast<int>(threadIdx.x) + p * static_cast<int>(blockDim.x) >= packs) continue;
#pragma unroll
    for (int k = 0; k < N; ++k) squares += (values[p][k] - average) * (values[p][k] - average);
  }
  const A scale = A(1) / sqrt(BlockSum(squares, shared) / static_cast<A>(width) + epsilon);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int index = static_cast<int>(threadIdx.x) + p * static_cast<int>(blockDim.x);
    if (index >= packs) continue;
    const int64_t column = static_cast<int64_t>(index) * N;
    const Pack<T, N> w = LoadPack<T, N>(weight + column);
    Pack<T, N> b, out;
    if (bias != nullptr) b = LoadPack<T, N>(bias + column);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A scaled = (values[p][k] - average) * scale * Load(w.values[k]);
      Store(bias != nullptr ? scaled + Load(b.values[k]) : scaled, out.values[k]);
    }
    StorePack<T, N>(out, y + row * width + column);
  }
  if (threadIdx.x == 0) {
    if (mean != nullptr) mean[row] = average;
    rstd[row] = scale;
  }
}

// residual may be dx. mean null: RMSNorm.
template <typename T, int N, int kPacks>
__global__ void BackwardKernel(const T* __restrict__ dy, const T* __restrict__ x, const Acc<T>* __restrict__ mean,
                               const Acc<T>* __restrict__ rstd, const T* __restrict__ weight, const T* residual, T* dx,
                               int packs) {
  using A = Acc<T>;
  __shared__ A shared[32];
  const int64_t width = static_cast<int64_t>(packs) * N, row = blockIdx.x;
  const A average = mean == nullptr ? A(0) : mean[row], scale = rstd[row];
  A normed[kPacks][N], gradient[kPacks][N];
  A sum = 0, dot = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int index = static_cast<int>(threadIdx.x) + p * static_cast<int>(blockDim.x);
    if (index >= packs) continue;
    const int64_t column = static_cast<int64_t>(index) * N;
    const Pack<T, N> in = LoadPack<T, N>(x + row * width + column), out = LoadPack<T, N>(dy + row * width + column);
    const Pack<T, N> w = LoadPack<T, N>(weight + column);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      normed[p][k] = (Load(in.values[k]) - average) * scale;
      gradient[p][k] = Load(out.values[k]) * Load(w.values[k]);
      sum += gradient[p][k];
      dot += gradient[p][k] * normed[p][k];
    }
  }
  sum = mean == nullptr ? A(0) : BlockSum(sum, shared) / static_cast<A>(width);
  dot = BlockSum(dot, shared) / static_cast<A>(width);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int index = static_cast<int>(threadIdx.x) + p * static_cast<int>(blockDim.x);
    if (index >= packs) continue;
    const int64_t at = row * width + static_cast<int64_t>(index) * N;
    Pack<T, N> added, out;
    if (residual != nullptr) added = LoadPack<T, N>(residual + at);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A value = (gradient[p][k] - sum - normed[p][k] * dot) * scale;
      Store(residual != nullptr ? value + Load(added.values[k]) : value, out.values[k]);
    }
    StorePack<T, N>(out, dx + at);
  }
}

// f(N, kPacks, packs of a row, threads): 16-byte accesses where all rows allow them.
template <typename T, typename F>
void ForRowShape(int64_t width, bool aligned, F&& f) {
  auto with_size = [&](auto size) {
    const int64_t packs = width / decltype(size)::value;
    if (packs > 4096) {
      throw Error(ErrorCode::kDevice, "KRN003", "a norm over " + std::to_string(width) + " elements that lie unaligned",
                  "", "choose a hidden_size that is a multiple of 8, or at most 4096");
    }
    const int per_thread = packs > 512 ? 4 : 1;
    const int threads = static_cast<int>((packs + per_thread * 32 - 1) / (per_thread * 32)) * 32;
    if (per_thread == 4) {
      f(size, std::integral_constant<int, 4>{}, static_cast<int>(packs), threads);
    } else {
      f(size, std::integral_constant<int, 1>{}, static_cast<int>(packs), threads);
    }
  };
  if (aligned && width % kPackSize<T> == 0) return with_size(std::integral_constant<int, kPackSize<T>>{});
  with_size(std::integral_constant<int, 1>{});
}

}  // namespace

void NormForward(Element type, const void* x, const void* weight, const void* bias, double epsilon, void* y, void* mean,
                 void* rstd, int64_t rows, int64_t width, cudaStream_t stream) {
  if (rows == 0) return;
  ForElement(type, [&](auto element) {
    using T = decltype(element);
    const bool aligned = Aligned(x, 16) && Aligned(weight, 16) && Aligned(bias, 16) && Aligned(y, 16);
    ForRowShape<T>(width, aligned, [&](auto size, auto per_thread, int packs, int threads) {
      ForwardKernel<T, decltype(size)::value, decltype(per_thread)::value>
          <<<static_cast<unsigned>(rows), threads, 0, stream>>>(
              static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<const T*>(bias),
              static_cast<Acc<T>>(epsilon), static_cast<T*>(y), static_cast<Acc<T>*>(mean), static_cast<Acc<T>*>(rstd),
              packs);
    });
  });
  CheckLaunch("NormForward");
}

void NormBackward(Element type, const void* dy, const void* x, const void* mean, const void* rstd, const void* weight,
                  const void* residual, void* dx, int64_t rows, int64_t width, cudaStream_t stream) {
  if (rows == 0) return;
  ForElement(type, [&](auto element) {
    using T = decltype(element);
    const bool aligned =
        Aligned(dy, 16) && Aligned(x, 16) && Aligned(weight, 16) && Aligned(residual, 16) && Aligned(dx, 16);
    ForRowShape<T>(width, aligned, [&](auto size, auto per_thread, int packs, int threads) {
      BackwardKernel<T, decltype(size)::value, decltype(per_thread)::value>
          <<<static_cast<unsigned>(rows), threads, 0, stream>>>(
              static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<const Acc<T>*>(mean),
              static_cast<const Acc<T>*>(rstd), static_cast<const T*>(weight), static_cast<const T*>(residual),
              static_cast<T*>(dx), packs);
    });
  });
  CheckLaunch("NormBackward");
}

}  // namespace trireme::kernels::cuda
