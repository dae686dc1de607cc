// DeepSpeed's elastic batch: out of a largest batch and the micro-batches that fit, one global batch that as many
// numbers of replicas as possible can train with. Source: DeepSpeed 0.19, elasticity/elasticity.py, versions 0.1, 0.2.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parsers/config.h"

namespace trireme {

// The section "elasticity".
struct ElasticityConfig {
  bool enabled = false;
  int64_t max_train_batch_size = 2000;
  std::vector<int64_t> micro_batch_sizes = {2, 4, 6};  // all > 0
  int64_t min_gpus = 1;
  int64_t max_gpus = 10000;
  bool prefer_larger_batch = true;
  bool ignore_non_elastic_batch_info = false;
  double version = 0.2;
  int64_t num_gpus_per_node = 1;
  int64_t model_parallel_size = 1;
};

struct ElasticResult {
  std::optional<BatchConfig> batch;  // absent: see the problem
  std::string what, fix;
};

// The batch for `replicas` data-parallel ranks.
ElasticResult ResolveElastic(const ElasticityConfig& config, int64_t replicas);

}  // namespace trireme
