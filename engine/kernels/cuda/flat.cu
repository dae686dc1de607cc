// Casts and adds over flat buffers.
#include "engine/kernels/cuda/device.cuh"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename From, typename To, int N, bool kAdd>
__global__ void CastKernel(const From* __restrict__ source, To* __restrict__ destination, int64_t packs) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const Pack<From, N> in = LoadPack<From, N>(source + i * N);
    Pack<To, N> out;
    if (kAdd) out = LoadPack<To, N>(destination + i * N);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (kAdd) {
        Store(Load(out.values[k]) + Load(in.values[k]), out.values[k]);
      } else {
        Store(Load(in.values[k]), out.values[k]);
      }
    }
    StorePack<To, N>(out, destination + i * N);
  }
}

template <bool kAdd>
void Run(Element from, Element to, const void* source, void* destination, int64_t count, cudaStream_t stream) {
  constexpr int N = 8;
  ForElement(from, [&](auto from_element) {
    ForElement(to, [&](auto to_element) {
      using From = decltype(from_element);
      using To = decltype(to_element);
      const auto* in = static_cast<const From*>(source);
      auto* out = static_cast<To*>(destination);
      const int64_t packs = Aligned(in, 16) && Aligned(out, 16) ? count / N : 0, rest = count - packs * N;
      if (packs > 0)
        CastKernel<From, To, N, kAdd><<<GridFor(packs, kThreads, kMostBlocks), kThreads, 0, stream>>>(in, out, packs);
      if (rest > 0) {
        CastKernel<From, To, 1, kAdd>
            <<<GridFor(rest, kThreads, kMostBlocks), kThreads, 0, stream>>>(in + packs * N, out + packs * N, rest);
      }
    });
  });
}

}  // namespace

void CastCopy(Element from, Element to, const void* source, void* destination, int64_t count, cudaStream_t stream) {
  Run<false>(from, to, source, destination, count, stream);
  CheckLaunch("CastCopy");
}

void AddInto(Element from, Element to, const void* source, void* destination, int64_t count, cudaStream_t stream) {
  Run<true>(from, to, source, destination, count, stream);
  CheckLaunch("AddInto");
}

}  // namespace trireme::kernels::cuda
