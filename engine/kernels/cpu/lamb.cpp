// LAMB on the CPU: moments with norms, and the step.
#include <array>
#include <cmath>
#include <vector>

#include "engine/kernels/backend.h"
#include "engine/kernels/cpu/update_types.h"
#include "engine/kernels/lamb_rate.h"

namespace trireme::kernels {
namespace {

template <typename M>
LambStep<M> MakeLambStep(const double* state, const at::Tensor& learning_rates, const at::Tensor& betas,
                         const LambOptions& options) {
  const int64_t row = TableRow(state, learning_rates);
  return {.beta1 = static_cast<M>(Data<double>(betas)[2 * row]),
          .beta2 = static_cast<M>(Data<double>(betas)[2 * row + 1]),
          .epsilon = static_cast<M>(options.epsilon),
          .weight_decay = static_cast<M>(options.weight_decay),
          .gradient_factor = static_cast<M>(state[kUpdateFactor]),
          .epsilon_inside_root = options.epsilon_inside_root};
}

}  // namespace

template <>
void Backend<CpuDevice>::LambMoments(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                                     const at::Tensor& gradient, const at::Tensor& squares, const at::Tensor& state,
                                     const at::Tensor& learning_rates, const at::Tensor& betas,
                                     const LambOptions& options) {
  constexpr int64_t kBlock = 2048;  // each block's sums are made by one thread; blocks are added in their order
  const double* slots = Data<double>(state);
  if (slots[kSkip] != 0) return;
  const int64_t count = master.numel(), blocks = (count + kBlock - 1) / kBlock;
  thread_local std::vector<std::array<double, 2>> kept;
  kept.resize(static_cast<size_t>(blocks));
  std::array<double, 2>* sums = kept.data();
  ForUpdateTypes(master, gradient, {}, [&]<typename M, typename G>(M, G, auto) {
    const LambStep<M> step = MakeLambStep<M>(slots, learning_rates, betas, options);
    Parallel(blocks, 4 * kBlock, [&](int64_t begin, int64_t end) {
      std::array<M, kBlock> u;
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlock, size = std::min(kBlock, count - first);
        AtLevel([&](auto level) {
          using Level = decltype(level);
          LambMomentVectors<Level, M, G>::Update(Data<M>(master) + first, Data<M>(exp_avg) + first,
                                                 Data<M>(exp_avg_sq) + first, Data<G>(gradient) + first, u.data(), size,
                                                 step);
          if (!squares.defined()) return;
          sums[block] = {SquareVectors<Level, M>::Sum(Data<M>(master) + first, size),
                         SquareVectors<Level, M>::Sum(u.data(), size)};
        });
      }
    });
  });
  if (!squares.defined()) return;
  for (int64_t block = 0; block < blocks; ++block) {
    for (size_t which = 0; which < 2; ++which) Data<double>(squares)[which] += sums[block][which];
  }
}

template <>
void Backend<CpuDevice>::LambUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                                    const at::Tensor& weights, const at::Tensor& squares, const at::Tensor& state,
                                    const at::Tensor& learning_rates, const at::Tensor& betas,
                                    const LambOptions& options) {
  const double* slots = Data<double>(state);
  if (slots[kSkip] != 0) return;
  ForUpdateTypes(master, master, weights, [&]<typename M, typename W>(M, auto, W) {
    const LambStep<M> step = MakeLambStep<M>(slots, learning_rates, betas, options);
    const double learning_rate = Data<double>(learning_rates)[TableRow(slots, learning_rates)];
    const auto rate =
        static_cast<M>(LambRate(learning_rate, slots[kAppliedSteps], step.beta1, step.beta2, Data<double>(squares),
                                {options.bias_correction, options.max_coefficient, options.min_coefficient}));
    Parallel(master.numel(), 4, [&](int64_t begin, int64_t end) {
      W* out = Data<W>(weights);
      AtLevel([&](auto level) {
        LambVectors<decltype(level), M, W>::Apply(Data<M>(master) + begin, Data<M>(exp_avg) + begin,
                                                  Data<M>(exp_avg_sq) + begin, out == nullptr ? nullptr : out + begin,
                                                  end - begin, step, rate);
      });
    });
  });
}

}  // namespace trireme::kernels
