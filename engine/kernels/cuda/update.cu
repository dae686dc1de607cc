// Optimizer updates over flat buffers. Compiled without contraction to fused multiply-add: the same bits as on the CPU,
// in any tail.
#include "engine/kernels/cuda/update.cuh"

namespace trireme::kernels::cuda {
namespace {

template <typename M>
struct AdamRule {
  M beta1, beta2, keep1, keep2, correction1, correction2, learning_rate, epsilon, coupled, decoupled, factor;

  __device__ void Prepare(const UpdateArguments& a, const AdamArguments& options) {
    const int64_t row = TableRow(a);
    beta1 = static_cast<M>(a.betas[2 * row]);
    beta2 = static_cast<M>(a.betas[2 * row + 1]);
    keep1 = M(1) - beta1;
    keep2 = M(1) - beta2;
    const double t = a.state[kAppliedSteps];
    correction1 = options.bias_correction ? static_cast<M>(1 - pow(static_cast<double>(beta1), t)) : M(1);
    correction2 = options.bias_correction ? static_cast<M>(1 - pow(static_cast<double>(beta2), t)) : M(1);
    learning_rate = static_cast<M>(a.learning_rates[row]);
    epsilon = static_cast<M>(options.epsilon);
    coupled = options.decoupled ? M(0) : static_cast<M>(options.weight_decay);
    decoupled = options.decoupled ? static_cast<M>(options.weight_decay) : M(0);
    factor = static_cast<M>(a.state[kUpdateFactor]);
  }
  __device__ M operator()(M p, M raw_gradient, M& first, M& second) const {
    const M g = raw_gradient * factor + coupled * p;
    first = beta1 * first + keep1 * g;
    second = beta2 * second + keep2 * g * g;
    const M u = (first / correction1) / (Root(second / correction2) + epsilon) + decoupled * p;
    return p - learning_rate * u;
  }
};

template <typename M>
struct SgdRule {
  M momentum, keep, learning_rate, weight_decay, factor;
  bool nesterov, first_step, buffered;

  __device__ void Prepare(const UpdateArguments& a, const SgdArguments& options) {
    momentum = static_cast<M>(options.momentum);
    keep = static_cast<M>(1 - options.dampening);
    learning_rate = static_cast<M>(a.learning_rates[TableRow(a)]);
    weight_decay = static_cast<M>(options.weight_decay);
    factor = static_cast<M>(a.state[kUpdateFactor]);
    nesterov = options.nesterov;
    first_step = a.state[kAppliedSteps] <= 1;
    buffered = a.first != nullptr;
  }
  __device__ M operator()(M p, M raw_gradient, M& first, M&) const {
    const M g = raw_gradient * factor + weight_decay * p;
    M u = g;
    if (buffered) {
      first = first_step ? g : momentum * first + keep * g;
      u = nesterov ? g + momentum * first : first;
    }
    return p - learning_rate * u;
  }
};

template <typename M>
struct AdagradRule {
  M learning_rate, epsilon, weight_decay, factor;

  __device__ void Prepare(const UpdateArguments& a, const AdagradArguments& options) {
    const double rate = a.learning_rates[TableRow(a)];
    learning_rate = static_cast<M>(rate / (1 + (a.state[kAppliedSteps] - 1) * options.lr_decay));
    epsilon = static_cast<M>(options.epsilon);
    weight_decay = static_cast<M>(options.weight_decay);
    factor = static_cast<M>(a.state[kUpdateFactor]);
  }
  __device__ M operator()(M p, M raw_gradient, M& sum, M&) const {
    const M g = raw_gradient * factor + weight_decay * p;
    sum = sum + g * g;
    return p - learning_rate * g / (Root(sum) + epsilon);
  }
};

template <typename M>
struct LionRule {
  M beta1, beta2, keep1, keep2, keep, learning_rate, factor;

  __device__ void Prepare(const UpdateArguments& a, const LionArguments& options) {
    const int64_t row = TableRow(a);
    beta1 = static_cast<M>(a.betas[2 * row]);
    beta2 = static_cast<M>(a.betas[2 * row + 1]);
    keep1 = M(1) - beta1;
    keep2 = M(1) - beta2;
    learning_rate = static_cast<M>(a.learning_rates[row]);
    keep = M(1) - learning_rate * static_cast<M>(options.weight_decay);
    factor = static_cast<M>(a.state[kUpdateFactor]);
  }
  __device__ M operator()(M p, M raw_gradient, M& first, M&) const {
    const M g = raw_gradient * factor;
    const M c = beta1 * first + keep1 * g;
    const M u = c > 0 ? learning_rate : (c < 0 ? -learning_rate : c);  // 0, or not a number
    first = beta2 * first + keep2 * g;
    return p * keep - u;
  }
};

template <typename M, typename G, typename W, int N, typename Rule, typename Options>
__global__ void UpdateKernel(UpdateArguments a, Options options, int64_t begin, int64_t packs) {
  __shared__ Rule shared;
  if (a.state[kSkip] != 0) return;
  if (threadIdx.x == 0) shared.Prepare(a, options);
  __syncthreads();
  const Rule rule = shared;
  auto* master = static_cast<M*>(a.master) + begin;
  auto* first = a.first == nullptr ? nullptr : static_cast<M*>(a.first) + begin;
  auto* second = a.second == nullptr ? nullptr : static_cast<M*>(a.second) + begin;
  const auto* gradient = static_cast<const G*>(a.gradient) + begin;
  auto* weights = a.weights == nullptr ? nullptr : static_cast<W*>(a.weights) + begin;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    Pack<M, N> p = LoadPack<M, N>(master + i * N), m = {}, v = {};
    if (first != nullptr) m = LoadPack<M, N>(first + i * N);
    if (second != nullptr) v = LoadPack<M, N>(second + i * N);
    const Pack<G, N> g = LoadPack<G, N>(gradient + i * N);
    Pack<W, N> w;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      p.values[k] = rule(p.values[k], static_cast<M>(Load(g.values[k])), m.values[k], v.values[k]);
      Store(p.values[k], w.values[k]);
    }
    StorePack<M, N>(p, master + i * N);
    if (first != nullptr) StorePack<M, N>(m, first + i * N);
    if (second != nullptr) StorePack<M, N>(v, second + i * N);
    if (weights != nullptr) StorePack<W, N>(w, weights + i * N);
  }
}

template <typename M, typename G, typename W, typename Rule, typename Options>
void Run(const UpdateArguments& a, const Options& options, cudaStream_t stream) {
  constexpr int N = 4;
  const bool aligned = Aligned(a.master, N * sizeof(M)) && Aligned(a.first, N * sizeof(M)) &&
                       Aligned(a.second, N * sizeof(M)) && Aligned(a.gradient, N * sizeof(G)) &&
                       Aligned(a.weights, N * sizeof(W));
  const int64_t packs = aligned ? a.count / N : 0, rest = a.count - packs * N;
  if (packs > 0) {
    UpdateKernel<M, G, W, N, Rule, Options>
        <<<GridFor(packs, kThreads, kMostBlocks), kThreads, 0, stream>>>(a, options, 0, packs);
  }
  if (rest > 0) {
    UpdateKernel<M, G, W, 1, Rule, Options>
        <<<GridFor(rest, kThreads, kMostBlocks), kThreads, 0, stream>>>(a, options, packs * N, rest);
  }
}

template <template <typename> class Rule, typename Options>
void RunTypes(Element master, Element gradient, Element weights, const UpdateArguments& a, const Options& options,
              cudaStream_t stream) {
  if (master == Element::kFloat64) return Run<double, double, double, Rule<double>>(a, options, stream);
  ForNarrowOrFloat(gradient, [&](auto g) {
    ForNarrowOrFloat(a.weights != nullptr ? weights : Element::kFloat32,
                     [&](auto w) { Run<float, decltype(g), decltype(w), Rule<float>>(a, options, stream); });
  });
}

}  // namespace

void AdamUpdate(Element master, Element gradient, Element weights, const UpdateArguments& arguments,
                const AdamArguments& options, cudaStream_t stream) {
  RunTypes<AdamRule>(master, gradient, weights, arguments, options, stream);
  CheckLaunch("AdamUpdate");
}

void SgdUpdate(Element master, Element gradient, Element weights, const UpdateArguments& arguments,
               const SgdArguments& options, cudaStream_t stream) {
  RunTypes<SgdRule>(master, gradient, weights, arguments, options, stream);
  CheckLaunch("SgdUpdate");
}

void AdagradUpdate(Element master, Element gradient, Element weights, const UpdateArguments& arguments,
                   const AdagradArguments& options, cudaStream_t stream) {
  RunTypes<AdagradRule>(master, gradient, weights, arguments, options, stream);
  CheckLaunch("AdagradUpdate");
}

void LionUpdate(Element master, Element gradient, Element weights, const UpdateArguments& arguments,
                const LionArguments& options, cudaStream_t stream) {
  RunTypes<LionRule>(master, gradient, weights, arguments, options, stream);
  CheckLaunch("LionUpdate");
}

}  // namespace trireme::kernels::cuda
