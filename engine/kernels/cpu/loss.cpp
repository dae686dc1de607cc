// Cross entropy and the step's sums on the CPU.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/kernels/backend.h"
#include "engine/kernels/cpu/dispatch.h"
#include "engine/kernels/step_stats.h"

namespace trireme::kernels {

template <>
void Backend<CpuDevice>::CrossEntropy(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row,
                                      int64_t vocab_size, double gradient_scale, const at::Tensor& row_losses,
                                      const at::Tensor& state, bool train) {
  const int64_t rows = logits.size(0), padded = logits.size(1), sequence = tokens.size(1) - 1;
  const int32_t* ids = Data<int32_t>(tokens);
  auto* slots = Data<double>(state);
  gradient_scale *= slots[kLossScale];
  auto label_of = [&](int64_t row) {
    const int64_t global = first_row + row;
    return static_cast<int64_t>(ids[global / sequence * (sequence + 1) + global % sequence + 1]);
  };
  ForType(logits.scalar_type(), [&]<typename T>(T) {
    auto* losses = Data<Acc<T>>(row_losses);
    Parallel(rows, 4 * vocab_size, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* row_logits = Data<T>(logits) + row * padded;
        const int64_t label = label_of(row);
        if (label < 0 ||
            label >= vocab_size) {  // no token, or an id that the data room should have refused: the loss shows it
          losses[row] = label < 0 ? Acc<T>(0) : std::numeric_limits<Acc<T>>::quiet_NaN();
          if (train) std::memset(static_cast<void*>(row_logits), 0, static_cast<size_t>(padded) * sizeof(T));
          continue;
        }
        AtLevel([&](auto level) {
          losses[row] = LossVectors<decltype(level), T>::Row(row_logits, vocab_size, padded, label,
                                                             static_cast<Acc<T>>(gradient_scale), train);
        });
      }
    });
    double sum = 0, count = 0;
    for (int64_t row = 0; row < rows; ++row) {
      sum += static_cast<double>(losses[row]);
      count += label_of(row) >= 0 ? 1 : 0;
    }
    slots[train ? kLossSum : kEvalLossSum] += sum;
    slots[train ? kTokens : kEvalTokens] += count;
  });
}

template <>
void Backend<CpuDevice>::SumOfSquares(const at::Tensor& gradient, const at::Tensor& state) {
  constexpr int64_t kBlock = 16384;  // each block's sum is made by one thread; blocks are added in their order
  const int64_t count = gradient.numel(), blocks = (count + kBlock - 1) / kBlock;
  thread_local std::vector<double> kept;
  kept.resize(static_cast<size_t>(blocks));
  double* sums = kept.data();
  ForType(gradient.scalar_type(), [&]<typename T>(T) {
    Parallel(blocks, kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        AtLevel([&](auto level) {
          sums[block] = SquareVectors<decltype(level), T>::Sum(Data<T>(gradient) + block * kBlock,
                                                               std::min(kBlock, count - block * kBlock));
        });
      }
    });
  });
  double total = 0;
  for (int64_t block = 0; block < blocks; ++block) total += sums[block];
  auto* slots = Data<double>(state);
  slots[kSumOfSquares] += total;
  if (!std::isfinite(total)) slots[kNonFinite] = 1;
}

template <>
void Backend<CpuDevice>::FinishStepStats(const at::Tensor& state, const StepStatsOptions& options) {
  FinishStepStatsOn(Data<double>(state), options);
}

}  // namespace trireme::kernels
