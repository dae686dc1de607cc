// LAMB over flat buffers: moments with norms, and the step. Compiled without contraction, as update.cu.
#include <string>

#include "engine/kernels/cuda/update.cuh"

namespace trireme::kernels::cuda {
namespace {

constexpr unsigned kMostPartials = 132 * 8;

// The same in both halves of a step.
template <typename M>
struct LambRule {
  M beta1, beta2, keep1, keep2, epsilon, weight_decay, factor;
  bool epsilon_inside_root;

  __device__ void Prepare(const UpdateArguments& a, const LambArguments& options) {
    const int64_t row = TableRow(a);
    beta1 = static_cast<M>(a.betas[2 * row]);
    beta2 = static_cast<M>(a.betas[2 * row + 1]);
    keep1 = M(1) - beta1;
    keep2 = M(1) - beta2;
    epsilon = static_cast<M>(options.epsilon);
    weight_decay = static_cast<M>(options.weight_decay);
    factor = static_cast<M>(a.state[kUpdateFactor]);
    epsilon_inside_root = options.epsilon_inside_root;
  }
  __device__ void UpdateMoments(M raw_gradient, M& first, M& second) const {
    const M g = raw_gradient * factor;
    first = beta1 * first + keep1 * g;
    second = beta2 * second + keep2 * g * g;
  }
  __device__ M Step(M p, M first, M second) const {
    const M root = epsilon_inside_root ? Root(second + epsilon) : Root(second) + epsilon;
    return first / root + weight_decay * p;
  }
};

// partial: [blocks][2], or null. A block's share of the elements depends on their number alone.
template <typename M, typename G, int N>
__global__ void MomentsKernel(UpdateArguments a, LambArguments options, double* __restrict__ partial) {
  __shared__ LambRule<M> shared_rule;
  __shared__ double shared[32];
  if (a.state[kSkip] != 0) return;
  if (threadIdx.x == 0) shared_rule.Prepare(a, options);
  __syncthreads();
  const LambRule<M> rule = shared_rule;
  const auto* master = static_cast<const M*>(a.master);
  auto* first = static_cast<M*>(a.first);
  auto* second = static_cast<M*>(a.second);
  const auto* gradient = static_cast<const G*>(a.gradient);
  double of_weights = 0, of_steps = 0;
  const int64_t packs = a.count / N, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t start = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  auto element = [&](M p, G raw, M& m, M& v) {
    rule.UpdateMoments(static_cast<M>(Load(raw)), m, v);
    const M u = rule.Step(p, m, v);
    of_weights += static_cast<double>(p) * static_cast<double>(p);
    of_steps += static_cast<double>(u) * static_cast<double>(u);
  };
  for (int64_t i = start; i < packs; i += stride) {
    const Pack<M, N> p = LoadPack<M, N>(master + i * N);
    const Pack<G, N> g = LoadPack<G, N>(gradient + i * N);
    Pack<M, N> m = LoadPack<M, N>(first + i * N), v = LoadPack<M, N>(second + i * N);
#pragma unroll
    for (int k = 0; k < N; ++k) element(p.values[k], g.values[k], m.values[k], v.values[k]);
    StorePack<M, N>(m, first + i * N);
    StorePack<M, N>(v, second + i * N);
  }
  for (int64_t i = packs * N + start; i < a.count; i += stride) element(master[i], gradient[i], first[i], second[i]);
  if (partial == nullptr) return;
  of_weights = BlockSum(of_weights, shared);
  of_steps = BlockSum(of_steps, shared);
  if (threadIdx.x != 0) return;
  partial[2 * blockIdx.x] = of_weights;
  partial[2 * blockIdx.x + 1] = of_steps;
}

__global__ void FinishSquares(const double* __restrict__ partial, int blocks, const double* state, double* squares) {
  __shared__ double shared[32];
  if (state[kSkip] != 0) return;
  for (int which = 0; which < 2; ++which) {
    double sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < blocks; i += static_cast<int>(blockDim.x)) {
      sum += partial[2 * i + which];
    }
    sum = BlockSum(sum, shared);
    if (threadIdx.x == 0) squares[which] += sum;
  }
}

template <typename M, typename W, int N>
__global__ void StepKernel(UpdateArguments a, const double* __restrict__ squares, LambArguments options, int64_t begin,
                           int64_t packs) {
  __shared__ LambRule<M> shared_rule;
  __shared__ M shared_rate;
  if (a.state[kSkip] != 0) return;
  if (threadIdx.x == 0) {
    shared_rule.Prepare(a, options);
    shared_rate = static_cast<M>(LambRate(a.learning_rates[TableRow(a)], a.state[kAppliedSteps],
                                          static_cast<double>(shared_rule.beta1),
                                          static_cast<double>(shared_rule.beta2), squares, options.rate));
  }
  __syncthreads();
  const LambRule<M> rule = shared_rule;
  const M rate = shared_rate;
  auto* master = static_cast<M*>(a.master) + begin;
  const auto* first = static_cast<const M*>(a.first) + begin;
  const auto* second = static_cast<const M*>(a.second) + begin;
  auto* weights = a.weights == nullptr ? nullptr : static_cast<W*>(a.weights) + begin;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    Pack<M, N> p = LoadPack<M, N>(master + i * N);
    const Pack<M, N> m = LoadPack<M, N>(first + i * N), v = LoadPack<M, N>(second + i * N);
    Pack<W, N> w;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      p.values[k] = p.values[k] - rate * rule.Step(p.values[k], m.values[k], v.values[k]);
      Store(p.values[k], w.values[k]);
    }
    StorePack<M, N>(p, master + i * N);
    if (weights != nullptr) StorePack<W, N>(w, weights + i * N);
  }
}

template <typename M, typename G>
void RunMoments(const UpdateArguments& a, double* squares, const LambArguments& options, Scratch scratch,
                cudaStream_t stream) {
  constexpr int N = 4;
  const unsigned blocks = GridFor(a.count, 4 * N * kThreads, kMostPartials);
  TRIREME_CHECK(static_cast<int64_t>(blocks) * 16 <= scratch.bytes,
                "partial sums of " + std::to_string(blocks) + " blocks in " + std::to_string(scratch.bytes) + " bytes");
  auto* partial = squares == nullptr ? nullptr : static_cast<double*>(scratch.data);
  const bool aligned = Aligned(a.master, N * sizeof(M)) && Aligned(a.first, N * sizeof(M)) &&
                       Aligned(a.second, N * sizeof(M)) && Aligned(a.gradient, N * sizeof(G));
  if (aligned) {
    MomentsKernel<M, G, N><<<blocks, kThreads, 0, stream>>>(a, options, partial);
  } else {
    MomentsKernel<M, G, 1><<<blocks, kThreads, 0, stream>>>(a, options, partial);
  }
  if (partial != nullptr) {
    FinishSquares<<<1, kThreads, 0, stream>>>(partial, static_cast<int>(blocks), a.state, squares);
  }
}

template <typename M, typename W>
void RunStep(const UpdateArguments& a, const double* squares, const LambArguments& options, cudaStream_t stream) {
  constexpr int N = 4;
  const bool aligned = Aligned(a.master, N * sizeof(M)) && Aligned(a.first, N * sizeof(M)) &&
                       Aligned(a.second, N * sizeof(M)) && Aligned(a.weights, N * sizeof(W));
  const int64_t packs = aligned ? a.count / N : 0, rest = a.count - packs * N;
  if (packs > 0) {
    StepKernel<M, W, N><<<GridFor(packs, kThreads, kMostBlocks), kThreads, 0, stream>>>(a, squares, options, 0, packs);
  }
  if (rest > 0) {
    StepKernel<M, W, 1>
        <<<GridFor(rest, kThreads, kMostBlocks), kThreads, 0, stream>>>(a, squares, options, packs * N, rest);
  }
}

}  // namespace

void LambMoments(Element master, Element gradient, const UpdateArguments& arguments, double* squares,
                 const LambArguments& options, Scratch scratch, cudaStream_t stream) {
  if (master == Element::kFloat64) {
    RunMoments<double, double>(arguments, squares, options, scratch, stream);
  } else {
    ForNarrowOrFloat(gradient,
                     [&](auto g) { RunMoments<float, decltype(g)>(arguments, squares, options, scratch, stream); });
  }
  CheckLaunch("LambMoments");
}

void LambUpdate(Element master, Element weights, const UpdateArguments& arguments, const double* squares,
                const LambArguments& options, cudaStream_t stream) {
  if (master == Element::kFloat64) {
    RunStep<double, double>(arguments, squares, options, stream);
  } else {
    ForNarrowOrFloat(arguments.weights != nullptr ? weights : Element::kFloat32,
                     [&](auto w) { RunStep<float, decltype(w)>(arguments, squares, options, stream); });
  }
  CheckLaunch("LambUpdate");
}

}  // namespace trireme::kernels::cuda
