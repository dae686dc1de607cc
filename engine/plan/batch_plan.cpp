#include <fmt/core.h>

#include "engine/base/error.h"
#include "engine/plan/parts.h"

namespace trireme::plan_parts {

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
  return batch;
}

}  // namespace trireme::plan_parts
