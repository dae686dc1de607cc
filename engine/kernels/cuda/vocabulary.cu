// Cross entropy over a part of the vocabulary, one block a row.
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/step_state.h"

namespace trireme::kernels::cuda {
namespace {

constexpr int kThreads = 512;

__device__ inline int64_t LabelOf(const VocabularyArguments& a, int64_t row) {
  const int64_t global = a.first_row + row;
  return a.tokens[global / a.sequence * (a.sequence + 1) + global % a.sequence + 1];
}

template <typename A>
__device__ inline A BlockMax(A value, A* shared) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const A other = __shfl_xor_sync(0xffffffffu, value, offset);
    value = other > value ? other : value;
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[threadIdx.x % (kThreads / 32)];
  for (int offset = 16; offset > 0; offset /= 2) {
    const A other = __shfl_xor_sync(0xffffffffu, value, offset);
    value = other > value ? other : value;
  }
  __syncthreads();
  return value;
}

template <typename T>
__global__ void StatisticsKernel(VocabularyArguments a) {
  using A = Acc<T>;
  __shared__ A maxima[kThreads / 32];
  __shared__ double sums[32];
  const int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(a.logits) + row * a.held;
  A highest = -static_cast<A>(INFINITY);
  for (int64_t c = threadIdx.x; c < a.columns; c += kThreads) {
    const A value = Load(logits[c]);
    highest = value > highest ? value : highest;
  }
  highest = BlockMax(highest, maxima);
  double sum = 0;
  for (int64_t c = threadIdx.x; c < a.columns; c += kThreads) sum += Exp(Load(logits[c]) - highest);
  sum = BlockSum(sum, sums);
  if (threadIdx.x != 0) return;
  const int64_t label = LabelOf(a, row) - a.first_id;
  A* exponentials = static_cast<A*>(a.sums);
  static_cast<A*>(a.maxima)[row] = highest;
  exponentials[row] = static_cast<A>(sum);
  exponentials[a.rows + row] = label >= 0 && label < a.columns ? Load(logits[label]) : A(0);
}

template <typename T>
__global__ void GradientKernel(VocabularyArguments a) {
  using A = Acc<T>;
  const int64_t row = blockIdx.x, whole_label = LabelOf(a, row), label = whole_label - a.first_id;
  T* logits = static_cast<T*>(a.logits) + row * a.held;
  const bool valid = whole_label >= 0 && whole_label < a.vocab;
  const A highest = static_cast<const A*>(a.maxima)[row], sum = static_cast<const A*>(a.sums)[row];
  const A scale = static_cast<A>(a.gradient_scale * a.state[kLossScale]), factor = scale / sum;
  for (int64_t c = threadIdx.x; c < a.held; c += kThreads) {
    A gradient = 0;
    if (valid && c < a.columns) {
      const A exponential = Exp(Load(logits[c]) - highest);
      gradient = c == label ? (exponential / sum - A(1)) * scale : exponential * factor;
    }
    Store(gradient, logits[c]);
  }
}

template <typename A>
__global__ void AddLossesKernel(VocabularyArguments a) {
  __shared__ double shared[32];
  const A *maxima = static_cast<const A*>(a.maxima), *exponentials = static_cast<const A*>(a.sums);
  double sum = 0, count = 0;
  for (int64_t row = threadIdx.x; row < a.rows; row += blockDim.x) {
    const int64_t label = LabelOf(a, row);
    if (label < 0) continue;
    sum += label < a.vocab ? static_cast<double>(Log(exponentials[row]) + (maxima[row] - exponentials[a.rows + row]))
                           : static_cast<double>(NAN);
    count += 1;
  }
  sum = BlockSum(sum, shared);
  count = BlockSum(count, shared);
  if (threadIdx.x != 0) return;
  a.state[a.train ? kLossSum : kEvalLossSum] += sum;
  a.state[a.train ? kTokens : kEvalTokens] += count;
}

}  // namespace

void VocabularyStatistics(Element type, const VocabularyArguments& a, cudaStream_t stream) {
  if (a.rows == 0) return;
  ForElement(type, [&](auto element) {
    StatisticsKernel<decltype(element)><<<static_cast<unsigned>(a.rows), kThreads, 0, stream>>>(a);
  });
  CheckLaunch("VocabularyStatistics");
}

void VocabularyLoss(Element type, const VocabularyArguments& a, cudaStream_t stream) {
  if (a.rows == 0) return;
  ForElement(type, [&](auto element) {
    using T = decltype(element);
    if (a.train) GradientKernel<T><<<static_cast<unsigned>(a.rows), kThreads, 0, stream>>>(a);
    if (a.counts) AddLossesKernel<Acc<T>><<<1, 512, 0, stream>>>(a);
  });
  CheckLaunch("VocabularyLoss");
}

}  // namespace trireme::kernels::cuda
