// Element types, exponentials, 16-byte accesses and block sums of the CUDA kernels.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "engine/base/error.h"
#include "engine/kernels/cuda/launch.h"

namespace trireme::kernels::cuda {

template <typename T>
struct AccumulateType {
  using type = float;
};
template <>
struct AccumulateType<double> {
  using type = double;
};
template <typename T>
using Acc = typename AccumulateType<T>::type;

__device__ inline double Load(double value) { return value; }
__device__ inline float Load(float value) { return value; }
__device__ inline float Load(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float Load(__half value) { return __half2float(value); }
template <typename A>
__device__ inline void Store(A value, double& target) {
  target = static_cast<double>(value);
}
template <typename A>
__device__ inline void Store(A value, float& target) {
  target = static_cast<float>(value);
}
__device__ inline void Store(float value, __nv_bfloat16& target) { target = __float2bfloat16_rn(value); }
__device__ inline void Store(double value, __nv_bfloat16& target) { target = __double2bfloat16(value); }
// Too large becomes infinite: the loss scaler looks for it.
__device__ inline void Store(float value, __half& target) { target = __float2half_rn(value); }
__device__ inline void Store(double value, __half& target) { target = __double2half(value); }

__device__ inline float Exp(float x) { return expf(x); }
__device__ inline double Exp(double x) { return exp(x); }
__device__ inline float Log(float x) { return logf(x); }
__device__ inline double Log(double x) { return log(x); }

// N elements in accesses of up to 16 bytes.
template <typename T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T values[N];
};
template <typename T, int N>
__device__ inline Pack<T, N> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <typename T, int N>
__device__ inline void StorePack(const Pack<T, N>& pack, T* to) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}
template <typename T>
constexpr int kPackSize = 16 / static_cast<int>(sizeof(T));

inline bool Aligned(const void* pointer, size_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

template <typename A>
__device__ inline A WarpSum(A value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// Sum over the block, given to every thread; blockDim.x a multiple of 32. `shared` holds 32 elements and may be used
// again after.
template <typename A>
__device__ inline A BlockSum(A value, A* shared) {
  value = WarpSum(value);
  const int warps = static_cast<int>(blockDim.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (warps == 1) return value;
  if (lane == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = WarpSum(lane < warps ? shared[lane] : A(0));
  __syncthreads();
  return value;
}

inline void CheckLaunch(const char* what) {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::kDevice, "KRN001",
              std::string("the GPU refused the kernel ") + what + ": " + cudaGetErrorString(status), "",
              "compare `nvidia-smi` with what the program was built for; for another GPU, rebuild with "
              "CMAKE_CUDA_ARCHITECTURES set to its compute capability");
}

// f(T{}) with the element type.
template <typename F>
void ForElement(Element type, F&& f) {
  switch (type) {
    case Element::kFloat64:
      return f(double{});
    case Element::kFloat32:
      return f(float{});
    case Element::kBFloat16:
      return f(__nv_bfloat16{});
    case Element::kFloat16:
      return f(__half{});
  }
}
// f(T{}, G{}): G is T, or fp32 beside a 16-bit T.
template <typename F>
void ForElementAndGradient(Element type, Element gradient_type, F&& f) {
  switch (type) {
    case Element::kFloat64:
      return f(double{}, double{});
    case Element::kFloat32:
      return f(float{}, float{});
    case Element::kBFloat16:
      if (gradient_type == Element::kFloat32) return f(__nv_bfloat16{}, float{});
      return f(__nv_bfloat16{}, __nv_bfloat16{});
    case Element::kFloat16:
      if (gradient_type == Element::kFloat32) return f(__half{}, float{});
      return f(__half{}, __half{});
  }
}

inline unsigned GridFor(int64_t items, int64_t per_block, int64_t most) {
  const int64_t blocks = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 1 ? 1 : (blocks > most ? most : blocks));
}
constexpr int64_t kMostBlocks = 132 * 16;  // of grid-stride loops

}  // namespace trireme::kernels::cuda
