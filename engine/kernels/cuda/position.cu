// Rotary positions, and dropout whose mask is a function of the element's place.
#include "engine/kernels/cuda/device.cuh"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A thread turns N channels with the N ones `half` after them.
template <typename T, int N>
__global__ void RotateKernel(RotateArguments a) {
  using A = Acc<T>;
  const int64_t head_packs = a.half / N, packs = a.tokens * a.heads * head_packs;
  const A sign = a.inverse ? A(-1) : A(1);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t channel = i % head_packs * N, head = i / head_packs % a.heads, row = i / head_packs / a.heads;
    const int64_t place = a.interleaved ? head / 2 * 3 + head % 2 : head;
    const int64_t table = (a.first_position + row % a.sequence) * a.half + channel;
    T* first = static_cast<T*>(a.qkv) + row * a.width + place * a.head_size + channel;
    T* second = first + a.half;
    const Pack<A, N> cosines = LoadPack<A, N>(static_cast<const A*>(a.cosines) + table),
                     sines = LoadPack<A, N>(static_cast<const A*>(a.sines) + table);
    Pack<T, N> x = LoadPack<T, N>(first), y = LoadPack<T, N>(second);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A u = Load(x.values[k]), v = Load(y.values[k]), cosine = cosines.values[k], sine = sign * sines.values[k];
      Store(u * cosine - v * sine, x.values[k]);
      Store(v * cosine + u * sine, y.values[k]);
    }
    StorePack<T, N>(x, first);
    StorePack<T, N>(y, second);
  }
}

// A thread makes 4 channels from one Philox block; kPacked: rows hold whole, aligned groups of 4.
template <typename T, bool kPacked>
__global__ void DropoutKernel(const T* x, const T* residual, DropoutMask mask, T* y, int64_t rows, int64_t width,
                              int64_t sequence) {
  using A = Acc<T>;
  const int64_t row_blocks = (width + 3) / 4, blocks = rows * row_blocks;
  const A scale = static_cast<A>(mask.scale);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < blocks;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = i / row_blocks, block = i % row_blocks, at = row * width + 4 * block;
    const PhiloxWords random = Philox(
        {{mask.first_block + static_cast<uint32_t>(block),
          LowWord(mask.first_position + static_cast<uint64_t>((mask.first_row + row) % sequence)),
          LowWord(mask.first_sample + static_cast<uint64_t>((mask.first_row + row) / sequence)), mask.layer_site}},
        mask.key_0, mask.key_1);
    auto value = [&](int k, T in) { return random.words[k] >= mask.threshold ? Load(in) * scale : A(0); };
    if constexpr (kPacked) {
      const Pack<T, 4> in = LoadPack<T, 4>(x + at);
      Pack<T, 4> added, out;
      if (residual != nullptr) added = LoadPack<T, 4>(residual + at);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const A kept = value(k, in.values[k]);
        Store(residual != nullptr ? Load(added.values[k]) + kept : kept, out.values[k]);
      }
      StorePack<T, 4>(out, y + at);
    } else {
      for (int k = 0; k < 4 && 4 * block + k < width; ++k) {
        const A kept = value(k, x[at + k]);
        Store(residual != nullptr ? Load(residual[at + k]) + kept : kept, y[at + k]);
      }
    }
  }
}

}  // namespace

void Rotate(Element type, const RotateArguments& a, cudaStream_t stream) {
  const int64_t pairs = a.tokens * a.heads * a.half;
  if (pairs == 0) return;
  ForElement(type, [&](auto element) {
    using T = decltype(element);
    constexpr int N = kPackSize<T>;
    if (a.half % N == 0 && a.head_size % N == 0 && Aligned(a.qkv, 16) && Aligned(a.cosines, 16) &&
        Aligned(a.sines, 16)) {
      RotateKernel<T, N><<<GridFor(pairs / N, kThreads, kMostBlocks), kThreads, 0, stream>>>(a);
    } else {
      RotateKernel<T, 1><<<GridFor(pairs, kThreads, kMostBlocks), kThreads, 0, stream>>>(a);
    }
  });
  CheckLaunch("Rotate");
}

void Dropout(Element type, const void* x, const void* residual, const DropoutMask& mask, void* y, int64_t rows,
             int64_t width, int64_t sequence, cudaStream_t stream) {
  if (rows * width == 0) return;
  const unsigned grid = GridFor(rows * ((width + 3) / 4), kThreads, kMostBlocks);
  ForElement(type, [&](auto element) {
    using T = decltype(element);
    auto run = [&](auto packed) {
      DropoutKernel<T, decltype(packed)::value><<<grid, kThreads, 0, stream>>>(
          static_cast<const T*>(x), static_cast<const T*>(residual), mask, static_cast<T*>(y), rows, width, sequence);
    };
    if (width % 4 == 0 && Aligned(x, 16) && Aligned(residual, 16) && Aligned(y, 16)) {
      run(std::true_type{});
    } else {
      run(std::false_type{});
    }
  });
  CheckLaunch("Dropout");
}

}  // namespace trireme::kernels::cuda
