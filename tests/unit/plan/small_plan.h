// Plans of small GPTs for tests.
#pragma once
#include <cstdint>
#include <string>

#include "engine/plan/plan.h"

namespace trireme::testing {

struct SmallPlan {
  int64_t layers = 2, hidden = 8, heads = 2, vocab = 50, positions = 16, sequence = 8;
  int64_t micro = 1, micro_batches = 1, ranks = 2;
  int zero_stage = 2;
  bool tied = true;
  bool bf16 = false;
  Recompute recompute = Recompute::kNone;
  RecomputeConfig activations = {};
  int64_t bucket_elements = 500'000'000;
  OptimizerType optimizer = OptimizerType::kAdam;
  int64_t pp = 1, virtual_stages = 1;  // `ranks` are all of them
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  std::string partition = "uniform";
  double offload_optimizer = 0;  // ratio; 0: none
  bool offload_param = false;
  int64_t tp = 1;
  bool sequence_parallel = false;
};

inline ModelSpec ModelOf(const SmallPlan& small) {
  ModelSpec model;
  model.name = "small";
  model.num_layers = small.layers;
  model.hidden_size = small.hidden;
  model.num_attention_heads = model.num_key_value_heads = small.heads;
  model.intermediate_size = 4 * small.hidden;
  model.vocab_size = small.vocab;
  model.max_position_embeddings = small.positions;
  model.tie_word_embeddings = small.tied;
  PadVocabulary(model, small.tp);
  return model;
}

inline Config ConfigOf(const SmallPlan& small) {
  Config config;
  const int64_t dp = small.ranks / small.pp / small.tp;
  config.batch = {small.micro * small.micro_batches * dp, small.micro, small.micro_batches};
  config.optimizer.type = small.optimizer;
  config.bf16.enabled = small.bf16;
  config.zero_optimization.zero_stage = small.zero_stage;
  config.zero_optimization.reduce_bucket_size = small.bucket_elements;
  config.zero_optimization.allgather_bucket_size = small.bucket_elements;
  if (small.offload_optimizer > 0) config.zero_optimization.offload_optimizer.device = OffloadDevice::kCpu;
  config.zero_optimization.offload_optimizer.ratio = small.offload_optimizer;
  if (small.offload_param) config.zero_optimization.offload_param.device = OffloadDevice::kCpu;
  config.world_size = small.ranks;
  config.dp_size = dp;
  config.recompute = small.activations;
  config.tensor_parallel = {small.tp, small.sequence_parallel};
  config.pipeline_parallel = {small.pp, small.virtual_stages, small.schedule, small.partition};
  return config;
}

inline Plan PlanOf(const SmallPlan& small) {
  PlanInputs inputs;
  inputs.world_size = small.ranks;
  inputs.sequence_length = small.sequence;
  inputs.recompute = small.recompute;
  return MakePlan(ConfigOf(small), ModelOf(small), inputs);
}

}  // namespace trireme::testing
