// Cross entropy over a part of the vocabulary on the CPU.
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/kernels/backend.h"
#include "engine/kernels/cpu/dispatch.h"

namespace trireme::kernels {
namespace {

struct Labels {
  const int32_t* tokens;
  int64_t sequence, first_row;

  int64_t Of(int64_t row) const {
    const int64_t global = first_row + row;
    return tokens[global / sequence * (sequence + 1) + global % sequence + 1];
  }
};

Labels LabelsOf(const at::Tensor& tokens, int64_t first_row) {
  return {Data<int32_t>(tokens), tokens.size(1) - 1, first_row};
}

}  // namespace

template <>
void Backend<CpuDevice>::VocabularyStatistics(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row,
                                              const VocabularyPart& part, const at::Tensor& maxima,
                                              const at::Tensor& sums) {
  const int64_t rows = logits.size(0), held = logits.size(1), columns = part.Columns(held);
  const Labels labels = LabelsOf(tokens, first_row);
  ForType(logits.scalar_type(), [&]<typename T>(T) {
    using A = Acc<T>;
    A *maximum = Data<A>(maxima), *exponentials = Data<A>(sums), *label_logits = exponentials + rows;
    Parallel(rows, 4 * columns, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* values = Data<T>(logits) + row * held;
        A highest = -std::numeric_limits<A>::infinity(), sum = 0;
        for (int64_t c = 0; c < columns; ++c) highest = std::max(highest, static_cast<A>(Load(values[c])));
        for (int64_t c = 0; c < columns; ++c) sum += std::exp(static_cast<A>(Load(values[c])) - highest);
        const int64_t label = labels.Of(row) - part.first_id;
        maximum[row] = highest;
        exponentials[row] = sum;
        label_logits[row] = label >= 0 && label < columns ? static_cast<A>(Load(values[label])) : A(0);
      }
    });
  });
}

template <>
void Backend<CpuDevice>::VocabularyLoss(const at::Tensor& logits, const at::Tensor& tokens, int64_t first_row,
                                        const VocabularyPart& part, const at::Tensor& maxima, const at::Tensor& sums,
                                        double gradient_scale, const at::Tensor& state, bool train) {
  const int64_t rows = logits.size(0), held = logits.size(1), columns = part.Columns(held);
  const Labels labels = LabelsOf(tokens, first_row);
  auto* slots = Data<double>(state);
  gradient_scale *= slots[kLossScale];
  ForType(logits.scalar_type(), [&]<typename T>(T) {
    using A = Acc<T>;
    const A *maximum = Data<A>(maxima), *exponentials = Data<A>(sums), *label_logits = exponentials + rows;
    const auto valid = [&](int64_t row) { return labels.Of(row) >= 0 && labels.Of(row) < part.vocab_size; };
    if (train) {
      Parallel(rows, 4 * columns, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          T* values = Data<T>(logits) + row * held;
          if (!valid(row)) {
            std::memset(static_cast<void*>(values), 0, static_cast<size_t>(held) * sizeof(T));
            continue;
          }
          const A scale = static_cast<A>(gradient_scale), factor = scale / exponentials[row];
          const int64_t label = labels.Of(row) - part.first_id;
          for (int64_t c = 0; c < held; ++c) {
            const A exponential = c < columns ? std::exp(static_cast<A>(Load(values[c])) - maximum[row]) : A(0);
            Store(c == label ? (exponential / exponentials[row] - A(1)) * scale : exponential * factor, values[c]);
          }
        }
      });
    }
    if (!part.counts) return;
    double sum = 0, count = 0;
    for (int64_t row = 0; row < rows; ++row) {
      if (labels.Of(row) < 0) continue;
      sum += valid(row) ? static_cast<double>(std::log(exponentials[row]) + (maximum[row] - label_logits[row]))
                        : std::numeric_limits<double>::quiet_NaN();
      count += 1;
    }
    slots[train ? kLossSum : kEvalLossSum] += sum;
    slots[train ? kTokens : kEvalTokens] += count;
  });
}

}  // namespace trireme::kernels
