// train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x dp, out of what is given of the
// three.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "parsers/config.h"

namespace trireme {

// What is known before: each number with the words that say where it came from ("line 3", "--micro-batch-size").
struct BatchInput {
  std::optional<int64_t> train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps;
  std::string batch_source, micro_source, accumulation_source;
  int64_t world_size = 1, tp_size = 1, pp_size = 1, sp_size = 1;  // all >= 1, their product divides the world
  // tp_size stands in autotp_size alone: DeepSpeed then counts every rank of a tensor-parallel group as a replica.
  bool autotp = false;
};

struct BatchResult {
  std::optional<BatchConfig> batch;  // absent: see the problem
  std::string id, key, what, fix;    // the key that the problem belongs to
};

// DeepSpeed's order of derivation (runtime/config.py, _configure_train_batch_size). Nothing is rounded to fit: what
// does not divide is refused, with the nearest settings that do.
BatchResult ResolveBatch(const BatchInput& input);

}  // namespace trireme
