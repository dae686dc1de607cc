#include "engine/plan/plan.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"
#include "parsers/model_config.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

using testing::ConfigOf;
using testing::ModelOf;
using testing::PlanOf;
using testing::SmallPlan;

std::string IdOf(const Config& config, const ModelSpec& model, int64_t ranks, int64_t sequence = 8) {
  PlanInputs inputs;
  inputs.world_size = ranks;
  inputs.sequence_length = sequence;
  try {
    MakePlan(config, model, inputs);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_FALSE(error.fix().empty());
    return error.id();
  }
  return "";
}

TEST(Plan, WhatCannotBePlannedSaysWhy) {
  const SmallPlan small;
  Config config = ConfigOf(small);
  ModelSpec model = ModelOf(small);
  EXPECT_EQ(IdOf(config, model, 2), "");
  EXPECT_EQ(IdOf(config, model, 3), "PLN003");
  EXPECT_EQ(IdOf(config, model, 0), "PLN002");
  EXPECT_EQ(IdOf(config, model, 2, 17), "PLN007");
  EXPECT_EQ(IdOf(config, model, 2, 0), "PLN007");
  config.tensor_parallel.tp_size = 2;
  EXPECT_EQ(IdOf(config, model, 3), "PLN002");
  config = ConfigOf(small);
  config.pipeline_parallel.pp_size = 2;
  EXPECT_EQ(IdOf(config, model, 2), "PLN003") << "the batch was resolved for two data-parallel ranks";
  EXPECT_EQ(IdOf(config, model, 3), "PLN002");
  config = ConfigOf(small);
  model.num_layers = 0;
  EXPECT_EQ(IdOf(config, model, 2), "PLN004");
  model = ModelOf(small);
  model.num_attention_heads = model.num_key_value_heads = 3;
  EXPECT_EQ(IdOf(config, model, 2), "PLN005");
  model = ModelOf(small);
  model.num_key_value_heads = 1;
  EXPECT_EQ(IdOf(config, model, 2), "PLN006");
}

// The sanitizers' build of this test finds what overflows before it is refused.
TEST(Plan, SizesThatCannotBeCountedAreRefused) {
  const SmallPlan small;
  const Config config = ConfigOf(small);
  for (const int64_t micro : {1'000, 1'000'000, 1'000'000'000}) {
    Config large = config;
    large.batch = {micro * small.ranks, micro, 1};
    ModelSpec model = ModelOf(small);
    EXPECT_EQ(IdOf(large, model, small.ranks), "") << micro;
    model.max_position_embeddings = 1'000'000'000;
    EXPECT_EQ(IdOf(large, model, small.ranks, 1'000'000'000), micro < 1'000'000 ? "" : "PLN032") << micro;
  }
  ModelSpec model = ModelOf(small);
  model.num_layers = 30'000;
  model.hidden_size = model.intermediate_size = 1'000'000'000;
  EXPECT_EQ(IdOf(config, model, small.ranks), "PLN032");
}

TEST(Plan, TopologyNumbersTensorParallelNeighboursFirst) {
  Topology topology;
  topology.pp_size = 2;
  topology.dp_size = 3;
  topology.tp_size = 4;
  EXPECT_EQ(topology.CoordinateOf(17).pp_rank, 1);
  EXPECT_EQ(topology.CoordinateOf(17).dp_rank, 1);
  EXPECT_EQ(topology.CoordinateOf(17).tp_rank, 1);
  for (int rank = 0; rank < topology.world_size(); ++rank)
    EXPECT_EQ(topology.RankOf(topology.CoordinateOf(rank)), rank);
}

TEST(Plan, BatchArithmetic) {
  SmallPlan small;
  small.micro = 3;
  small.micro_batches = 4;
  small.ranks = 5;
  const Plan plan = PlanOf(small);
  EXPECT_EQ(plan.batch.train_batch_size, 60);
  EXPECT_EQ(plan.batch.tokens_per_micro_batch(), 24);
  EXPECT_EQ(plan.batch.tokens_per_step(), 480);
}

Config DynamicConfig(int64_t max_tokens, int64_t min_rows, std::optional<int64_t> max_rows) {
  Config config;
  config.batch = {6, 1, 6};
  config.data_efficiency.dynamic_batching = {
      .enabled = true, .max_tokens = max_tokens, .min_batch_size = min_rows, .max_batch_size = max_rows};
  return config;
}

TEST(Plan, DynamicBatchesAreABudgetOfTokens) {
  const ModelSpec model = ModelOf(SmallPlan{});
  Config config = DynamicConfig(100, 1, std::nullopt);
  const auto batch = [&](int64_t sequence) {
    return MakePlan(config, model, {.world_size = config.tensor_parallel.tp_size, .sequence_length = sequence}).batch;
  };
  EXPECT_TRUE(batch(8).is_dynamic());
  EXPECT_EQ(batch(8).tokens_per_micro_batch(), 100);
  EXPECT_EQ(batch(8).tokens_per_step(), 600);
  EXPECT_EQ(batch(8).dynamic.max_rows, 12);
  EXPECT_EQ(batch(8).ids_per_micro_batch(), 112);
  EXPECT_EQ(batch(8).sequence_length, 8);
  config = DynamicConfig(14, 2, 3);  // two rows of the longest fit
  EXPECT_EQ(batch(8).sequence_length, 7);
  EXPECT_EQ(batch(8).dynamic.max_rows, 2);
  config.tensor_parallel = {2, true};  // every length divides by 2
  EXPECT_EQ(batch(8).sequence_length, 6);
  EXPECT_EQ(batch(8).dynamic.length_multiple, 8);
  config = DynamicConfig(2, 2, std::nullopt);
  config.tensor_parallel = {2, true};
  EXPECT_EQ(IdOf(config, model, 2), "PLN025");
}

TEST(Plan, DynamicBatchesNeedPositionsThatPaddingDoesNotChange) {
  ModelSpec model = ModelOf(SmallPlan{});
  model.family = Family::kLlama;
  model.activation = Activation::kSilu;
  model.rope.scaling = RopeSpec::Scaling::kDynamic;
  model.rope.factor = 4;
  const Config config = DynamicConfig(100, 1, std::nullopt);
  EXPECT_EQ(IdOf(config, model, 1, model.max_position_embeddings), "");
  EXPECT_EQ(IdOf(config, model, 1, model.max_position_embeddings + 1), "PLN025");
}

TEST(Plan, TypesOfTheRun) {
  SmallPlan small;
  Config config = ConfigOf(small);
  const ModelSpec model = ModelOf(small);
  PlanInputs inputs;
  inputs.world_size = 2;
  inputs.sequence_length = 8;
  EXPECT_FALSE(MakePlan(config, model, inputs).separate_master);
  config.bf16.enabled = true;
  Plan plan = MakePlan(config, model, inputs);
  EXPECT_TRUE(plan.separate_master);
  EXPECT_EQ(plan.dtypes.compute, DType::kBFloat16);
  EXPECT_EQ(plan.dtypes.master, DType::kFloat32);
  EXPECT_EQ(plan.dtypes.accumulate, DType::kFloat32);
  EXPECT_EQ(plan.dtypes.communicate, DType::kFloat32);
  config.trireme.deepspeed_accumulation = true;
  plan = MakePlan(config, model, inputs);
  EXPECT_EQ(plan.dtypes.accumulate, DType::kBFloat16);
  EXPECT_EQ(plan.dtypes.communicate, DType::kBFloat16);
  config.data_types.grad_accum_dtype = DType::kFloat32;
  plan = MakePlan(config, model, inputs);
  EXPECT_EQ(plan.dtypes.accumulate, DType::kFloat32);
  EXPECT_EQ(plan.dtypes.communicate, DType::kBFloat16);
  inputs.fp64 = true;
  plan = MakePlan(config, model, inputs);
  EXPECT_EQ(plan.dtypes.compute, DType::kFloat64);
  EXPECT_EQ(plan.dtypes.communicate, DType::kFloat64);
  EXPECT_FALSE(plan.separate_master);
}

TEST(Plan, MomentsOfTheOptimizer) {
  SmallPlan small;
  EXPECT_EQ(PlanOf(small).moments_per_element, 2);
  small.optimizer = OptimizerType::kSgd;
  EXPECT_EQ(PlanOf(small).moments_per_element, 0);
  EXPECT_FALSE(PlanOf(small).trust_ratios);
  for (const OptimizerType type : {OptimizerType::kAdagrad, OptimizerType::kLion}) {
    small.optimizer = type;
    EXPECT_EQ(PlanOf(small).moments_per_element, 1);
  }
  small.optimizer = OptimizerType::kLamb;
  EXPECT_EQ(PlanOf(small).moments_per_element, 2);
  EXPECT_TRUE(PlanOf(small).trust_ratios);
  small.optimizer = OptimizerType::kSgd;
  Config config = ConfigOf(small);
  config.optimizer.momentum = 0.9;
  PlanInputs inputs;
  inputs.world_size = 2;
  inputs.sequence_length = 8;
  EXPECT_EQ(MakePlan(config, ModelOf(small), inputs).moments_per_element, 1);
}

TEST(Plan, OneRankHasNothingToShard) {
  SmallPlan small;
  small.zero_stage = 3;
  small.ranks = 1;
  const Plan plan = PlanOf(small);
  EXPECT_EQ(plan.zero_stage, 3);
  EXPECT_EQ(plan.effective_zero_stage, 0);
  EXPECT_EQ(plan.OwnElements(1), plan.units[1].padded_elements);
}

TEST(Plan, SmallHeadJoinsTheLastBlockOfALargeModel) {
  Config config;
  config.batch = {8, 1, 1};
  PlanInputs inputs;
  inputs.world_size = 8;
  inputs.sequence_length = 2048;
  for (const int stage : {2, 3}) {
    config.zero_optimization.zero_stage = stage;
    const Plan plan = MakePlan(config, NamedModel("gpt-13b"), inputs);
    ASSERT_EQ(plan.buckets.size(), 41u);
    EXPECT_EQ(plan.buckets.back(), (UnitRange{40, 41}));
    EXPECT_EQ(plan.buckets.front(), (UnitRange{0, 0}));
  }
}

TEST(Plan, SmallBlocksShareABucket) {
  Config config;
  config.batch = {8, 1, 1};
  PlanInputs inputs;
  inputs.world_size = 8;
  inputs.sequence_length = 1024;
  Plan plan = MakePlan(config, NamedModel("gpt-125m"), inputs);
  EXPECT_EQ(plan.buckets.size(), 7u);                       // two blocks each, the embedding alone
  config.zero_optimization.reduce_bucket_size = 8'000'000;  // one block has 7.1 million
  plan = MakePlan(config, NamedModel("gpt-125m"), inputs);
  EXPECT_EQ(plan.buckets.size(), 13u);
  config.zero_optimization.reduce_bucket_size = 500'000'000;
  config.zero_optimization.allgather_bucket_size = 1;
  plan = MakePlan(config, NamedModel("gpt-125m"), inputs);
  EXPECT_EQ(plan.buckets.size(), 14u);
}

TEST(Plan, SavedTensorsAreAligned) {
  const Plan plan = PlanOf({});
  const SavedLayout layout = LayOutSaved(plan.units[1].spec, plan.dtypes, 3);
  ASSERT_EQ(layout.offsets.size(), 12u);
  int64_t end = 0;
  for (size_t i = 0; i < layout.offsets.size(); ++i) {
    if (plan.units[1].spec.saved[i].place == SavedSpec::Place::kPool) {
      EXPECT_EQ(layout.offsets[i], -1);
      continue;
    }
    EXPECT_EQ(layout.offsets[i] % kSavedAlignment, 0);
    EXPECT_GE(layout.offsets[i], end);
    end = layout.offsets[i] + layout.bytes[i];
  }
  EXPECT_LE(end, layout.arena_bytes);
  EXPECT_EQ(layout.pool_bytes, 3 * (8 + 2) * 4);
}

}  // namespace
}  // namespace trireme
