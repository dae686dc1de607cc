// Looking for values that are not finite, and checksums.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/inspect_rules.h"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ inline uint64_t BitsOf(double value) { return static_cast<uint64_t>(__double_as_longlong(value)); }
__device__ inline uint64_t BitsOf(float value) { return __float_as_uint(value); }
__device__ inline uint64_t BitsOf(__nv_bfloat16 value) { return __bfloat16_as_ushort(value); }
__device__ inline uint64_t BitsOf(__half value) { return __half_as_ushort(value); }

template <typename T>
__global__ void FindKernel(const T* __restrict__ values, int64_t count, long long* result) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const auto value = Load(values[i]);
    if (isfinite(value)) continue;
    atomicMin(result, static_cast<long long>(2 * i + (isnan(value) ? 1 : 0)));
    return;  // what this thread would find later is not the first
  }
}

template <typename T>
__global__ void ChecksumKernel(const T* __restrict__ values, int64_t count, unsigned long long* result) {
  uint64_t sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    sum += ChecksumTerm(BitsOf(values[i]), i);
  }
  __shared__ uint64_t shared[32];
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) atomicAdd(result, static_cast<unsigned long long>(sum));
}

}  // namespace

void FindNonFinite(Element type, const void* values, int64_t count, int64_t* result, cudaStream_t stream) {
  ForElement(type, [&](auto element) {
    using T = decltype(element);
    FindKernel<T><<<GridFor(count, kThreads * 4, kMostBlocks), kThreads, 0, stream>>>(
        static_cast<const T*>(values), count, reinterpret_cast<long long*>(result));
  });
  CheckLaunch("FindNonFinite");
}

void Checksum(Element type, const void* values, int64_t count, int64_t* result, cudaStream_t stream) {
  ForElement(type, [&](auto element) {
    using T = decltype(element);
    ChecksumKernel<T><<<GridFor(count, kThreads * 8, kMostBlocks), kThreads, 0, stream>>>(
        static_cast<const T*>(values), count, reinterpret_cast<unsigned long long*>(result));
  });
  CheckLaunch("Checksum");
}

}  // namespace trireme::kernels::cuda
