// Embedding. Backward without atomics: the first token of each id sums all tokens of that id in their order.
#include "engine/kernels/cuda/device.cuh"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 128;

__device__ inline int32_t InputAt(const int32_t* tokens, int64_t row, int64_t sequence) {
  return tokens[row / sequence * (sequence + 1) + row % sequence];
}

template <typename T, int N>
__global__ void ForwardKernel(const int32_t* __restrict__ tokens, const T* __restrict__ token_table,
                              const T* __restrict__ position_table, T* __restrict__ x, int64_t sequence, int64_t vocab,
                              int64_t width) {
  const int64_t row = blockIdx.x;
  const int64_t id = InputAt(tokens, row, sequence);
  const bool valid = id >= 0 && id < vocab;
  const T* position = position_table == nullptr ? nullptr : position_table + row % sequence * width;
  for (int64_t column = static_cast<int64_t>(threadIdx.x) * N; column < width; column += kThreads * N) {
    Pack<T, N> sum = {};
    if (position != nullptr) sum = LoadPack<T, N>(position + column);
    if (valid) {
      const Pack<T, N> token = LoadPack<T, N>(token_table + id * width + column);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (position == nullptr) {
          sum.values[k] = token.values[k];
        } else {
          Store(Load(sum.values[k]) + Load(token.values[k]), sum.values[k]);
        }
      }
    }
    StorePack<T, N>(sum, x + row * width + column);
  }
}

template <typename G>
__global__ void ZeroKernel(G* values, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    Store(0.0f, values[i]);
}

// Block: one token. If an earlier token has the same id it ends; else it adds up the rows of all tokens with this id,
// and adds the sum to the table's row once. It looks for them kThreads tokens at a time; `matches` lists those found,
// in order.
template <typename T, typename G>
__global__ void TokenBackwardKernel(const T* __restrict__ dx, const int32_t* __restrict__ tokens, G* dtable,
                                    int64_t rows, int64_t sequence, int64_t vocab, int64_t width) {
  constexpr int kColumns = 8;  // of one thread at a time
  __shared__ int matches[kThreads];
  __shared__ int warp_counts[kThreads / 32];
  const int64_t own = blockIdx.x;
  const int32_t id = InputAt(tokens, own, sequence);
  if (id < 0 || id >= vocab) return;
  for (int64_t begin = 0; begin < own; begin += kThreads) {
    const int64_t row = begin + threadIdx.x;
    if (__syncthreads_or(row < own && InputAt(tokens, row, sequence) == id)) return;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int64_t first_column = 0; first_column < width; first_column += kThreads * kColumns) {
    Acc<T> sums[kColumns] = {};
    for (int64_t begin = own; begin < rows; begin += kThreads) {
      const int64_t row = begin + threadIdx.x;
      const bool match = row < rows && InputAt(tokens, row, sequence) == id;
      const unsigned ballot = __ballot_sync(0xffffffffu, match);
      if (lane == 0) warp_counts[warp] = __popc(ballot);
      __syncthreads();
      int before = __popc(ballot & ((1u << lane) - 1u)), total = 0;
      for (int w = 0; w < kThreads / 32; ++w) {
        if (w < warp) before += warp_counts[w];
        total += warp_counts[w];
      }
      if (match) matches[before] = static_cast<int>(threadIdx.x);
      __syncthreads();
      for (int i = 0; i < total; ++i) {
        const T* gradient = dx + (begin + matches[i]) * width;
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
          const int64_t column = first_column + k * kThreads + threadIdx.x;
          if (column < width) sums[k] += Load(gradient[column]);
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      const int64_t column = first_column + k * kThreads + threadIdx.x;
      if (column >= width) continue;
      G* out = dtable + static_cast<int64_t>(id) * width + column;
      Store(sums[k] + static_cast<Acc<T>>(Load(*out)), *out);
    }
  }
}

template <typename T, typename G>
__global__ void PositionBackwardKernel(const T* __restrict__ dx, G* dtable, int64_t micro, int64_t sequence,
                                       int64_t width, bool add) {
  const int64_t position = blockIdx.x;
  for (int64_t column = threadIdx.x; column < width; column += kThreads) {
    Acc<T> sum = 0;
    if (position < sequence) {
      for (int64_t b = 0; b < micro; ++b) sum += Load(dx[(b * sequence + position) * width + column]);
    }
    G* out = dtable + position * width + column;
    Store(add ? sum + static_cast<Acc<T>>(Load(*out)) : sum, *out);
  }
}

}  // namespace

void EmbeddingForward(Element type, const int32_t* tokens, const void* token_table, const void* position_table, void* x,
                      int64_t micro, int64_t sequence, int64_t vocab, int64_t width, cudaStream_t stream) {
  if (micro == 0) return;
  const auto rows = static_cast<unsigned>(micro * sequence);
  ForElement(type, [&](auto element) {
    using T = decltype(element);
    const auto *token = static_cast<const T*>(token_table), *position = static_cast<const T*>(position_table);
    if (width % kPackSize<T> == 0 && Aligned(token, 16) && Aligned(position, 16) && Aligned(x, 16)) {
      ForwardKernel<T, kPackSize<T>>
          <<<rows, kThreads, 0, stream>>>(tokens, token, position, static_cast<T*>(x), sequence, vocab, width);
    } else {
      ForwardKernel<T, 1>
          <<<rows, kThreads, 0, stream>>>(tokens, token, position, static_cast<T*>(x), sequence, vocab, width);
    }
  });
  CheckLaunch("EmbeddingForward");
}

void EmbeddingBackward(Element type, Element gradient_type, const void* dx, const int32_t* tokens, void* dtoken_table,
                       void* dposition_table, int64_t micro, int64_t sequence, int64_t vocab, int64_t positions,
                       int64_t width, bool add, cudaStream_t stream) {
  const int64_t rows = micro * sequence;
  ForElementAndGradient(type, gradient_type, [&](auto element, auto gradient) {
    using T = decltype(element);
    using G = decltype(gradient);
    if (!add) {
      ZeroKernel<G>
          <<<GridFor(vocab * width, 1024, kMostBlocks), 256, 0, stream>>>(static_cast<G*>(dtoken_table), vocab * width);
    }
    if (rows > 0) {
      TokenBackwardKernel<T, G><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
          static_cast<const T*>(dx), tokens, static_cast<G*>(dtoken_table), rows, sequence, vocab, width);
    }
    if (dposition_table != nullptr) {
      PositionBackwardKernel<T, G><<<static_cast<unsigned>(positions), kThreads, 0, stream>>>(
          static_cast<const T*>(dx), static_cast<G*>(dposition_table), micro, sequence, width, add);
    }
  });
  CheckLaunch("EmbeddingBackward");
}

}  // namespace trireme::kernels::cuda
