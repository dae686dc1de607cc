// Optimizer updates, casts and adds over flat buffers on the CPU.
#include <cmath>

#include "engine/kernels/backend.h"
#include "engine/kernels/cpu/update_types.h"

namespace trireme::kernels {
namespace {

template <typename F>
void ForTwoTypes(const at::Tensor& source, const at::Tensor& destination, F&& f) {
  ForType(source.scalar_type(), [&](auto from) { ForType(destination.scalar_type(), [&](auto to) { f(from, to); }); });
}

template <typename M>
AdamStep<M> MakeAdamStep(const double* state, const at::Tensor& learning_rates, const at::Tensor& betas,
                         const AdamOptions& options) {
  const int64_t row = UpdateRow(state, learning_rates.numel());
  AdamStep<M> step{};
  // Betas are rounded first, their powers and what follows from them made in double and rounded once.
  step.beta1 = static_cast<M>(Data<double>(betas)[2 * row]);
  step.beta2 = static_cast<M>(Data<double>(betas)[2 * row + 1]);
  auto correction = [&](M beta) {
    return options.bias_correction ? 1 - std::pow(static_cast<double>(beta), state[kAppliedSteps]) : 1.0;
  };
  const double learning_rate = LearningRate(state, Data<double>(learning_rates), learning_rates.numel());
  step.step_size = static_cast<M>(learning_rate / correction(step.beta1));
  step.inverse_root = static_cast<M>(1 / std::sqrt(correction(step.beta2)));
  step.epsilon = static_cast<M>(options.epsilon);
  step.coupled_decay = options.decoupled ? M(0) : static_cast<M>(options.weight_decay);
  step.decoupled_decay = options.decoupled ? static_cast<M>(learning_rate * options.weight_decay) : M(0);
  step.gradient_factor = static_cast<M>(state[kUpdateFactor]);
  return step;
}

// From here on the states do not fit into the caches, and weights need not stay there.
constexpr int64_t kStreamedElements = 1 << 21;

}  // namespace

template <>
void Backend<CpuDevice>::AdamUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                                    const at::Tensor& gradient, const at::Tensor& weights, const at::Tensor& state,
                                    const at::Tensor& learning_rates, const at::Tensor& betas,
                                    const AdamOptions& options) {
  const double* slots = Data<double>(state);
  if (slots[kSkip] != 0) return;
  ForUpdateTypes(master, gradient, weights, [&]<typename M, typename G, typename W>(M, G, W) {
    const AdamStep<M> step = MakeAdamStep<M>(slots, learning_rates, betas, options);
    const bool stream = master.numel() >= kStreamedElements;
    Parallel(master.numel(), 4, [&](int64_t begin, int64_t end) {
      W* out = Data<W>(weights);
      AtWidestLevel([&](auto level) {
        AdamVectors<decltype(level), M, G, W>::Update(
            Data<M>(master) + begin, Data<M>(exp_avg) + begin, Data<M>(exp_avg_sq) + begin, Data<G>(gradient) + begin,
            out == nullptr ? nullptr : out + begin, end - begin, step, stream);
      });
    });
  });
}

template <>
void Backend<CpuDevice>::SgdUpdate(const at::Tensor& master, const at::Tensor& momentum_buffer,
                                   const at::Tensor& gradient, const at::Tensor& weights, const at::Tensor& state,
                                   const at::Tensor& learning_rates, const SgdOptions& options) {
  const double* slots = Data<double>(state);
  if (slots[kSkip] != 0) return;
  ForUpdateTypes(master, gradient, weights, [&]<typename M, typename G, typename W>(M, G, W) {
    const SgdStep<M> step{
        .momentum = static_cast<M>(options.momentum),
        .keep = static_cast<M>(1 - options.dampening),
        .learning_rate = static_cast<M>(LearningRate(slots, Data<double>(learning_rates), learning_rates.numel())),
        .weight_decay = static_cast<M>(options.weight_decay),
        .gradient_factor = static_cast<M>(slots[kUpdateFactor]),
        .nesterov = options.nesterov,
        .first = slots[kAppliedSteps] <= 1};
    Parallel(master.numel(), 4, [&](int64_t begin, int64_t end) {
      W* out = Data<W>(weights);
      M* buffer = Data<M>(momentum_buffer);
      AtLevel([&](auto level) {
        UpdateVectors<decltype(level), M, G, W>::Sgd(
            Data<M>(master) + begin, buffer == nullptr ? nullptr : buffer + begin, Data<G>(gradient) + begin,
            out == nullptr ? nullptr : out + begin, end - begin, step);
      });
    });
  });
}

template <>
void Backend<CpuDevice>::AdagradUpdate(const at::Tensor& master, const at::Tensor& sum, const at::Tensor& gradient,
                                       const at::Tensor& weights, const at::Tensor& state,
                                       const at::Tensor& learning_rates, const AdagradOptions& options) {
  const double* slots = Data<double>(state);
  if (slots[kSkip] != 0) return;
  const double rate = LearningRate(slots, Data<double>(learning_rates), learning_rates.numel());
  ForUpdateTypes(master, gradient, weights, [&]<typename M, typename G, typename W>(M, G, W) {
    const AdagradStep<M> step{
        .learning_rate = static_cast<M>(rate / (1 + (slots[kAppliedSteps] - 1) * options.lr_decay)),
        .epsilon = static_cast<M>(options.epsilon),
        .weight_decay = static_cast<M>(options.weight_decay),
        .gradient_factor = static_cast<M>(slots[kUpdateFactor])};
    Parallel(master.numel(), 4, [&](int64_t begin, int64_t end) {
      W* out = Data<W>(weights);
      AtLevel([&](auto level) {
        UpdateVectors<decltype(level), M, G, W>::Adagrad(Data<M>(master) + begin, Data<M>(sum) + begin,
                                                         Data<G>(gradient) + begin,
                                                         out == nullptr ? nullptr : out + begin, end - begin, step);
      });
    });
  });
}

template <>
void Backend<CpuDevice>::LionUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& gradient,
                                    const at::Tensor& weights, const at::Tensor& state,
                                    const at::Tensor& learning_rates, const at::Tensor& betas,
                                    const LionOptions& options) {
  const double* slots = Data<double>(state);
  if (slots[kSkip] != 0) return;
  const int64_t row = UpdateRow(slots, learning_rates.numel());
  ForUpdateTypes(master, gradient, weights, [&]<typename M, typename G, typename W>(M, G, W) {
    const LionStep<M> step{
        .beta1 = static_cast<M>(Data<double>(betas)[2 * row]),
        .beta2 = static_cast<M>(Data<double>(betas)[2 * row + 1]),
        .learning_rate = static_cast<M>(LearningRate(slots, Data<double>(learning_rates), learning_rates.numel())),
        .weight_decay = static_cast<M>(options.weight_decay),
        .gradient_factor = static_cast<M>(slots[kUpdateFactor])};
    Parallel(master.numel(), 4, [&](int64_t begin, int64_t end) {
      W* out = Data<W>(weights);
      AtLevel([&](auto level) {
        UpdateVectors<decltype(level), M, G, W>::Lion(Data<M>(master) + begin, Data<M>(exp_avg) + begin,
                                                      Data<G>(gradient) + begin, out == nullptr ? nullptr : out + begin,
                                                      end - begin, step);
      });
    });
  });
}

template <>
void Backend<CpuDevice>::CastCopy(const at::Tensor& source, const at::Tensor& destination) {
  ForTwoTypes(source, destination, [&]<typename From, typename To>(From, To) {
    Parallel(source.numel(), 1, [&](int64_t begin, int64_t end) {
      AtLevel([&](auto level) {
        CastVectors<decltype(level), From, To>::Copy(Data<From>(source) + begin, Data<To>(destination) + begin,
                                                     end - begin);
      });
    });
  });
}

template <>
void Backend<CpuDevice>::AddInto(const at::Tensor& source, const at::Tensor& destination) {
  ForTwoTypes(source, destination, [&]<typename From, typename To>(From, To) {
    Parallel(source.numel(), 1, [&](int64_t begin, int64_t end) {
      AtLevel([&](auto level) {
        CastVectors<decltype(level), From, To>::Add(Data<From>(source) + begin, Data<To>(destination) + begin,
                                                    end - begin);
      });
    });
  });
}

}  // namespace trireme::kernels
