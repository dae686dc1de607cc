// Which samples a rank takes: pure functions of the position in samples, so that a run resumed with another
// micro-batch, accumulation or rank count sees the same samples in the same order, none twice and none skipped.
//   int64_t first = FirstSample(consumed_samples, m, dp_rank, dp_size, micro_batch_size);   // micro_batch_size samples
//   from there
// Megatron-LM's sequential sampler: a global batch is num_micro_batches blocks of dp_size * micro_batch_size samples;
// in block m rank r takes the r-th run of micro_batch_size. From step t on, with a constant batch, this is
// ((t * num_micro_batches + m) * dp_size + r) * micro_batch_size + i. Epochs are part of the sample order
// (gpt_dataset.h), so nothing here knows where one ends.
#pragma once
#include <algorithm>
#include <cstdint>

namespace trireme::data {

// consumed_samples: samples of all ranks before this step, skipped steps included.
constexpr int64_t FirstSample(int64_t consumed_samples, int64_t micro_batch, int64_t dp_rank, int64_t dp_size,
                              int64_t micro_batch_size) {
  return consumed_samples + (micro_batch * dp_size + dp_rank) * micro_batch_size;
}

constexpr int64_t GlobalBatchSize(int64_t num_micro_batches, int64_t dp_size, int64_t micro_batch_size) {
  return num_micro_batches * dp_size * micro_batch_size;
}

// Whole steps from `consumed_samples` to the end of a run of `planned_samples`: what a resumed run must still do, and
// what "planned" means when it compares planned with done at its end.
constexpr int64_t StepsLeft(int64_t consumed_samples, int64_t planned_samples, int64_t global_batch_size) {
  return std::max<int64_t>(0, planned_samples - consumed_samples) / global_batch_size;
}

}  // namespace trireme::data
