// Cross entropy, one block a row: one pass for maximum and sum (online softmax, arXiv:1805.02867), one that writes the
// gradient.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/step_state.h"
#include "engine/kernels/step_stats.h"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 512;

__device__ inline int32_t LabelOf(const LossArguments& a, int64_t row) {
  const int64_t global = a.first_row + row;
  return a.tokens[global / a.sequence * (a.sequence + 1) + global % a.sequence + 1];
}

// Sum of exp(v - maximum), and maximum. A maximum of -inf is the empty sum.
template <typename A>
struct Softmax {
  A maximum, sum;
};
template <typename A>
__device__ inline Softmax<A> Merge(Softmax<A> a, Softmax<A> b) {
  // A NaN in either must win: no comparison is true for it, so it is carried in the sums.
  const A maximum = a.maximum > b.maximum ? a.maximum : b.maximum;
  const A left = a.sum == A(0) ? A(0) : a.sum * Exp(a.maximum - maximum);
  const A right = b.sum == A(0) ? A(0) : b.sum * Exp(b.maximum - maximum);
  return {maximum, left + right};
}

template <typename A>
__device__ inline Softmax<A> BlockMerge(Softmax<A> value, Softmax<A>* shared) {
  auto warp_merge = [](Softmax<A> v) {
    for (int offset = 16; offset > 0; offset /= 2) {
      v = Merge(
          v, Softmax<A>{__shfl_xor_sync(0xffffffffu, v.maximum, offset), __shfl_xor_sync(0xffffffffu, v.sum, offset)});
    }
    return v;
  };
  value = warp_merge(value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const A lowest = -static_cast<A>(INFINITY);
  return warp_merge(lane < kThreads / 32 ? shared[lane] : Softmax<A>{lowest, A(0)});
}

template <typename T, int N>
__global__ void CrossEntropyKernel(LossArguments a) {
  using A = Acc<T>;
  __shared__ Softmax<A> shared[kThreads / 32];
  const int64_t row = blockIdx.x;
  T* logits = static_cast<T*>(a.logits) + row * a.padded;
  A* losses = static_cast<A*>(a.row_losses);
  const int64_t label = LabelOf(a, row), packs = a.padded / N;
  if (label < 0 || label >= a.vocab) {
    if (threadIdx.x == 0) losses[row] = label < 0 ? A(0) : static_cast<A>(NAN);
    if (!a.train) return;
    for (int64_t i = threadIdx.x; i < a.padded; i += kThreads) Store(A(0), logits[i]);
    return;
  }
  Softmax<A> own{-static_cast<A>(INFINITY), A(0)};
  for (int64_t i = threadIdx.x; i < packs; i += kThreads) {
    const Pack<T, N> pack = LoadPack<T, N>(logits + i * N);
    A maximum = own.maximum;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (i * N + k < a.vocab) maximum = Load(pack.values[k]) > maximum ? Load(pack.values[k]) : maximum;
    }
    A sum = own.sum == A(0) ? A(0) : own.sum * Exp(own.maximum - maximum);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (i * N + k < a.vocab) sum += Exp(Load(pack.values[k]) - maximum);
    }
    own = {maximum, sum};
  }
  const A label_logit = Load(logits[label]);
  const Softmax<A> all =
      BlockMerge(own, shared);  // its barrier also orders the read of label_logit before the writes below
  if (threadIdx.x == 0) losses[row] = Log(all.sum) + (all.maximum - label_logit);
  if (!a.train) return;
  const A scale = static_cast<A>(a.gradient_scale * a.state[kLossScale]), factor = scale / all.sum;
  for (int64_t i = threadIdx.x; i < packs; i += kThreads) {
    Pack<T, N> pack = LoadPack<T, N>(logits + i * N);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int64_t column = i * N + k;
      const A exponential = Exp(Load(pack.values[k]) - all.maximum);
      const A gradient = column == label ? (exponential / all.sum - A(1)) * scale : exponential * factor;
      Store(column < a.vocab ? gradient : A(0), pack.values[k]);
    }
    StorePack<T, N>(pack, logits + i * N);
  }
}

template <typename A>
__global__ void AddLossesKernel(LossArguments a) {
  __shared__ double shared[32];
  double sum = 0, count = 0;
  for (int64_t row = threadIdx.x; row < a.rows; row += blockDim.x) {
    sum += static_cast<double>(static_cast<const A*>(a.row_losses)[row]);
    count += LabelOf(a, row) >= 0 ? 1 : 0;
  }
  sum = BlockSum(sum, shared);
  count = BlockSum(count, shared);
  if (threadIdx.x != 0) return;
  a.state[a.train ? kLossSum : kEvalLossSum] += sum;
  a.state[a.train ? kTokens : kEvalTokens] += count;
}

__global__ void FinishStepStatsKernel(double* state, StepStatsOptions options) { FinishStepStatsOn(state, options); }

}  // namespace

void CrossEntropy(Element type, const LossArguments& a, cudaStream_t stream) {
  if (a.rows == 0) return;
  ForElement(type, [&](auto element) {
    using T = decltype(element);
    if (a.padded % kPackSize<T> == 0 && Aligned(a.logits, 16)) {
      CrossEntropyKernel<T, kPackSize<T>><<<static_cast<unsigned>(a.rows), kThreads, 0, stream>>>(a);
    } else {
      CrossEntropyKernel<T, 1><<<static_cast<unsigned>(a.rows), kThreads, 0, stream>>>(a);
    }
    AddLossesKernel<Acc<T>><<<1, 512, 0, stream>>>(a);
  });
  CheckLaunch("CrossEntropy");
}

void FinishStepStats(double* state, const StepStatsOptions& options, cudaStream_t stream) {
  FinishStepStatsKernel<<<1, 1, 0, stream>>>(state, options);
  CheckLaunch("FinishStepStats");
}

}  // namespace trireme::kernels::cuda
