// Whatever is recomputed, and however what it starts from is kept: training is bitwise the one that keeps all, in every
// layout, family and type.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <tuple>

#include "engine/advise/fill.h"
#include "tests/ranks/trainer/trains_alike.h"

namespace trireme::test {
namespace {

// Five layers, so that segments of two leave one over. Widths that two tp ranks divide.
ModelSpec Tiny(const std::string& family) {
  ModelSpec model;
  model.name = family;
  model.num_layers = 5;
  model.hidden_size = 20;
  model.num_attention_heads = model.num_key_value_heads = 2;
  model.intermediate_size = 38;
  model.vocab_size = 61;
  model.padded_vocab_size = 128;
  model.max_position_embeddings = 16;
  model.tie_word_embeddings = family == "gpt2" || family == "qwen2";
  if (family == "gpt2") return model;
  if (family == "neox") {
    model.family = Family::kGptNeoX;
    model.activation = Activation::kGelu;
    model.rope.rotary_fraction = 0.25;
    model.parallel_residual = true;
    return model;
  }
  model.family = family == "qwen2" ? Family::kQwen2 : Family::kLlama;
  model.activation = Activation::kSilu;
  model.num_attention_heads = 4;
  model.head_size = 6;
  model.qkv_bias = family == "qwen2";
  model.attention_out_bias = model.mlp_bias = false;
  return model;
}

struct Layout {
  const char* name;
  int64_t tp = 1, pp = 1, dp = 1;
  int stage = 0;
  bool sequence_parallel = false;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int64_t virtual_stages = 1;
};
constexpr auto kZeroBubble = PipelineSchedule::kZeroBubble;
constexpr Layout kLayouts[] = {
    {"one"},
    {"zero0", 1, 1, 2, 0},
    {"zero1", 1, 1, 2, 1},
    {"zero2", 1, 1, 2, 2},
    {"zero3", 1, 1, 2, 3},
    {"tp", 2, 1, 2, 1},
    {"tp_sequence", 2, 1, 2, 2, true},
    {"gpipe", 1, 2, 1, 0, false, PipelineSchedule::kGPipe},
    {"pipeline_zero3", 1, 2, 2, 3},
    {"interleaved", 1, 2, 1, 0, false, PipelineSchedule::kOneForwardOneBackward, 2},
    {"zero_bubble", 1, 2, 1, 0, false, kZeroBubble},
    {"zero_bubble_all", 2, 2, 2, 3, false, kZeroBubble},
    {"zero_bubble_sequence", 2, 2, 1, 1, true, kZeroBubble},
};

struct Policy {
  const char* name;
  RecomputeConfig config;
};
const Policy kPolicies[] = {
    {"cheap", {.runs = {{Recompute::kCheap, 0}}}},
    {"full", {.runs = {{Recompute::kFull, 0}}}},
    {"mixed", {.runs = {{Recompute::kFull, 1}, {Recompute::kCheap, 2}, {Recompute::kNone, 1}, {Recompute::kFull, 0}}}},
    {"pairs", {.runs = {{Recompute::kFull, 0}}, .layers_per_checkpoint = 2}},
    {"first_of_stage", {.runs = {{Recompute::kFull, 1}}, .of_each_stage = true}},
    {"two_checkpoints_partitioned",
     {.runs = {{Recompute::kFull, 0}}, .number_checkpoints = 2, .partition_activations = true}},
    {"on_the_host", {.runs = {{Recompute::kFull, 3}, {Recompute::kCheap, 0}}, .cpu_checkpointing = true}},
    {"pairs_partitioned_on_the_host",
     {.runs = {{Recompute::kFull, 0}},
      .layers_per_checkpoint = 2,
      .partition_activations = true,
      .cpu_checkpointing = true}},
};

enum class Type { kFp64, kFp32, kBf16 };

TinyRun RunOf(const std::string& family, const Layout& layout, Type type) {
  TinyRun run{.accumulation = 2, .global_batch = 8, .steps = 3, .clip = 0.1};
  run.fp64 = type == Type::kFp64;
  run.bf16 = type == Type::kBf16;
  run.model = Tiny(family);
  run.dropout = 0.1;
  run.world = static_cast<int>(layout.tp * layout.pp * layout.dp);
  run.tp = layout.tp;
  run.pp = layout.pp;
  run.virtual_stages = layout.virtual_stages;
  run.zero_stage = layout.stage;
  run.sequence_parallel = layout.sequence_parallel;
  run.schedule = layout.schedule;
  run.bucket = 2000;  // below a layer: at ZeRO 3 a segment lies in several buckets
  return run;
}

using Case = std::tuple<std::string, Layout, Type>;

class RecomputeEquality : public ::testing::TestWithParam<Case> {};

TEST_P(RecomputeEquality, IsBitwise) {
  const auto& [family, layout, type] = GetParam();
  TinyRun run = RunOf(family, layout, type);
  const Curve want = Train(run);
  ASSERT_EQ(want.failed, "");
  for (const Policy& policy : kPolicies) {
    run.activations = policy.config;
    const Curve got = Train(run);
    ASSERT_EQ(got.failed, "") << policy.name;
    EXPECT_EQ(got.losses, want.losses) << policy.name;
    EXPECT_EQ(got.norms, want.norms) << policy.name;
    EXPECT_EQ(got.weights, want.weights) << policy.name;
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Layout& layout : kLayouts) cases.emplace_back("gpt2", layout, Type::kFp64);
  for (const Type type : {Type::kFp32, Type::kBf16}) {
    for (const size_t index : {4, 5, 11}) cases.emplace_back("gpt2", kLayouts[index], type);
  }
  for (const char* family : {"llama", "qwen2", "neox"}) {
    for (const size_t index : {4, 6, 11}) cases.emplace_back(family, kLayouts[index], Type::kFp64);
    cases.emplace_back(family, kLayouts[5], Type::kBf16);
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  static constexpr const char* kTypes[] = {"fp64", "fp32", "bf16"};
  return std::get<0>(info.param) + "_" + std::get<1>(info.param).name + "_" +
         kTypes[static_cast<size_t>(std::get<2>(info.param))];
}

// "trireme.fill": whatever memory is granted, what is chosen for it changes no bit.
TEST(Fill, ChangesNoBit) {
  for (const size_t index : {4, 9}) {  // ZeRO 3, and an interleaved pipeline
    TinyRun run = RunOf("gpt2", kLayouts[index], Type::kFp64);
    const Curve want = Train(run);
    const TrainerSetup setup = SetupOf(run);
    Job job{setup.config, setup.model, {}};
    job.inputs = {.world_size = run.world, .sequence_length = setup.sequence_length, .fp64 = true};
    job.inputs.hidden_dropout = run.dropout;
    const auto bytes = [&](Recompute policy) {
      Config config = job.config;
      config.recompute.runs = {{policy, 0}};
      return PlanOf(job, config)->memory.total();
    };
    const int64_t least = bytes(Recompute::kFull), most = bytes(Recompute::kNone);
    for (const int64_t limit : {(least + most) / 2, least - least / 10}) {
      const bool offloads = limit < least;
      if (offloads && run.zero_stage == 0) continue;
      const Filled filled = *Fill(job, job.config, {.limit_bytes = limit});
      ASSERT_TRUE(filled.fits);
      EXPECT_TRUE(filled.plan.recomputes());
      EXPECT_EQ(offloads, filled.plan.offloads());
      run.fill_bytes = static_cast<int64_t>(static_cast<double>(limit) / kTightShare) + 1;
      const Curve got = Train(run);
      ASSERT_EQ(got.failed, "");
      EXPECT_EQ(got.losses, want.losses);
      EXPECT_EQ(got.norms, want.norms);
      EXPECT_EQ(got.weights, want.weights);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, RecomputeEquality, ::testing::ValuesIn(Cases()), CaseName);

}  // namespace
}  // namespace trireme::test
