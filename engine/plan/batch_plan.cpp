#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "engine/base/error.h"
#include "engine/plan/parts.h"

namespace trireme::plan_parts {
namespace {

constexpr int64_t kLengthMultiple = 8;  // of padded lengths: what matrix units of 16-bit numbers like

// The longest sequence is what --seq-length allows and what min_batch_size of them leave of the budget. Under sequence
// parallelism every length divides by tp.
void PlanDynamicBatches(const DynamicBatchingConfig& config, int64_t token_share, BatchPlan& batch) {
  DynamicBatchPlan& dynamic = batch.dynamic;
  dynamic.max_tokens = config.max_tokens;
  dynamic.min_rows = config.min_batch_size;
  dynamic.length_multiple = std::lcm(kLengthMultiple, token_share);
  batch.sequence_length = std::min(batch.sequence_length, dynamic.max_tokens / dynamic.min_rows);
  batch.sequence_length -= batch.sequence_length % token_share;
  if (batch.sequence_length < 1) {
    throw Error(ErrorCode::kConfig, "PLN025",
                fmt::format("{} tokens hold no {} sequences whose length divides by {}", dynamic.max_tokens,
                            dynamic.min_rows, token_share),
                "data_efficiency.data_sampling.dynamic_batching.max_tokens",
                fmt::format("set max_tokens to {} or more", dynamic.min_rows * dynamic.length_multiple));
  }
  const int64_t shortest = std::min(dynamic.length_multiple, batch.sequence_length);
  dynamic.max_rows = std::min(config.max_batch_size.value_or(INT64_MAX), dynamic.max_tokens / shortest);
}

}  // namespace

BatchPlan MakeBatchPlan(const Config& config, const Topology& topology, int64_t sequence_length) {
  BatchPlan batch;
  batch.micro_batch_size = config.batch.train_micro_batch_size_per_gpu;
  batch.num_micro_batches = config.batch.gradient_accumulation_steps;
  batch.train_batch_size = config.batch.train_batch_size;
  batch.sequence_length = sequence_length;
  const int64_t product = batch.micro_batch_size * batch.num_micro_batches * topology.dp_size;
  if (product < 1 || product != batch.train_batch_size) {
    throw Error(
        ErrorCode::kConfig, "PLN003",
        fmt::format("train_batch_size {} != {} (micro) x {} (accumulation) x {} (dp) = {}", batch.train_batch_size,
                    batch.micro_batch_size, batch.num_micro_batches, topology.dp_size, product),
        "train_batch_size",
        fmt::format("set train_batch_size to {}, or read the config for this number of ranks", product));
  }
  const DynamicBatchingConfig& dynamic = config.data_efficiency.dynamic_batching;
  const TensorParallelConfig& tensor = config.tensor_parallel;
  if (dynamic.enabled) PlanDynamicBatches(dynamic, tensor.sequence_parallel ? tensor.tp_size : 1, batch);
  return batch;
}

}  // namespace trireme::plan_parts
