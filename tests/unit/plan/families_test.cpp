// Units of LLaMA, Qwen2 and GPT-NeoX against Hugging Face's names and shapes, and against published counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/plan/plan.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

using Shape = std::vector<int64_t>;

ModelSpec Llama2_7b() {
  ModelSpec model;
  model.name = "llama2-7b";
  model.family = Family::kLlama;
  model.activation = Activation::kSilu;
  model.num_layers = 32;
  model.hidden_size = 4096;
  model.num_attention_heads = model.num_key_value_heads = 32;
  model.intermediate_size = 11008;
  model.vocab_size = model.padded_vocab_size = 32000;
  model.max_position_embeddings = 4096;
  model.tie_word_embeddings = false;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = false;
  return model;
}

ModelSpec Qwen2_5_1_5b() {
  ModelSpec model = Llama2_7b();
  model.name = "qwen2.5-1.5b";
  model.family = Family::kQwen2;
  model.num_layers = 28;
  model.hidden_size = 1536;
  model.num_attention_heads = 12;
  model.num_key_value_heads = 2;
  model.intermediate_size = 8960;
  model.vocab_size = model.padded_vocab_size = 151936;
  model.tie_word_embeddings = model.qkv_bias = true;
  return model;
}

ModelSpec Pythia1_4b() {
  ModelSpec model;
  model.name = "pythia-1.4b";
  model.family = Family::kGptNeoX;
  model.activation = Activation::kGelu;
  model.num_layers = 24;
  model.hidden_size = 2048;
  model.num_attention_heads = model.num_key_value_heads = 16;
  model.intermediate_size = 8192;
  model.vocab_size = model.padded_vocab_size = 50304;
  model.max_position_embeddings = 2048;
  model.tie_word_embeddings = false;
  model.parallel_residual = true;
  model.rope.rotary_fraction = 0.25;
  return model;
}

std::map<std::string, ParameterSpec> Parameters(const ModelSpec& model) {
  std::map<std::string, ParameterSpec> result;
  for (const UnitSpec& unit : MakeUnitSpecs(model, {DType::kBFloat16, 1024, 0, false, 0})) {
    for (const ParameterSpec& parameter : unit.parameters) {
      EXPECT_TRUE(result.emplace(parameter.name, parameter).second) << parameter.name;
    }
  }
  return result;
}

int64_t Count(const std::map<std::string, ParameterSpec>& parameters) {
  int64_t count = 0;
  for (const auto& [name, parameter] : parameters) {
    count += std::accumulate(parameter.shape.begin(), parameter.shape.end(), int64_t{1}, std::multiplies<>());
  }
  return count;
}

TEST(Families, ParametersAreThePublishedCounts) {
  for (const auto& [model, count] : {std::pair{Llama2_7b(), int64_t{6'738'415'616}},
                                     {Qwen2_5_1_5b(), int64_t{1'543'714'304}},
                                     {Pythia1_4b(), int64_t{1'414'647'808}}}) {
    EXPECT_EQ(NumParameters(model), count) << model.name;
    EXPECT_EQ(Count(Parameters(model)), count) << model.name;
  }
  ModelSpec model = Llama2_7b();  // every flag in the formula
  model.head_size = 100;
  model.num_key_value_heads = 8;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = model.tie_word_embeddings = true;
  EXPECT_EQ(NumParameters(model), Count(Parameters(model)));
  model = Pythia1_4b();
  model.qkv_bias = model.attention_out_bias = false;
  EXPECT_EQ(NumParameters(model), Count(Parameters(model)));
}

TEST(Families, LlamaNamesAndShapesAreThoseOfHuggingFace) {
  ModelSpec model = Llama2_7b();
  model.num_key_value_heads = 8;
  auto at = Parameters(model);
  EXPECT_EQ(at.size(), 3 + 32 * 9u);
  EXPECT_EQ(at.at("model.embed_tokens.weight").shape, (Shape{32000, 4096}));
  EXPECT_EQ(at.at("model.layers.31.self_attn.q_proj.weight").shape, (Shape{4096, 4096}));
  EXPECT_EQ(at.at("model.layers.0.self_attn.k_proj.weight").shape, (Shape{1024, 4096}));
  EXPECT_EQ(at.at("model.layers.0.self_attn.v_proj.weight").HeldShape(), (Shape{1024, 4096}));
  EXPECT_EQ(at.at("model.layers.0.self_attn.o_proj.weight").HeldShape(), (Shape{4096, 4096}));
  EXPECT_EQ(at.at("model.layers.0.mlp.gate_proj.weight").shape, (Shape{11008, 4096}));
  EXPECT_EQ(at.at("model.layers.0.mlp.up_proj.weight").shape, (Shape{11008, 4096}));
  EXPECT_EQ(at.at("model.layers.0.mlp.down_proj.weight").shape, (Shape{4096, 11008}));
  EXPECT_EQ(at.at("model.layers.0.input_layernorm.weight").shape, (Shape{4096}));
  EXPECT_EQ(at.at("model.layers.0.post_attention_layernorm.weight").shape, (Shape{4096}));
  EXPECT_EQ(at.at("model.norm.weight").shape, (Shape{4096}));
  EXPECT_EQ(at.at("lm_head.weight").shape, (Shape{32000, 4096}));
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  at = Parameters(model);
  EXPECT_EQ(at.size(), 3 + 32 * 16u);
  EXPECT_EQ(at.at("model.layers.0.self_attn.k_proj.bias").shape, (Shape{1024}));
  EXPECT_EQ(at.at("model.layers.0.self_attn.o_proj.bias").shape, (Shape{4096}));
  EXPECT_EQ(at.at("model.layers.0.mlp.up_proj.bias").shape, (Shape{11008}));
  EXPECT_EQ(at.at("model.layers.0.mlp.down_proj.bias").shape, (Shape{4096}));
}

TEST(Families, QwenHasBiasesAtQueryKeyAndValueAlone) {
  const auto at = Parameters(Qwen2_5_1_5b());
  EXPECT_EQ(at.size(), 2 + 28 * 12u);
  EXPECT_EQ(at.at("model.layers.0.self_attn.q_proj.bias").shape, (Shape{1536}));
  EXPECT_EQ(at.at("model.layers.0.self_attn.v_proj.bias").shape, (Shape{256}));
  EXPECT_FALSE(at.contains("model.layers.0.self_attn.o_proj.bias"));
  EXPECT_FALSE(at.contains("lm_head.weight"));
}

TEST(Families, NeoXNamesAndShapesAreThoseOfHuggingFace) {
  const auto at = Parameters(Pythia1_4b());
  EXPECT_EQ(at.size(), 4 + 24 * 12u);
  EXPECT_EQ(at.at("gpt_neox.embed_in.weight").shape, (Shape{50304, 2048}));
  EXPECT_EQ(at.at("gpt_neox.layers.3.attention.query_key_value.weight").HeldShape(), (Shape{6144, 2048}));
  EXPECT_EQ(at.at("gpt_neox.layers.3.attention.query_key_value.bias").shape, (Shape{6144}));
  EXPECT_EQ(at.at("gpt_neox.layers.3.attention.dense.weight").shape, (Shape{2048, 2048}));
  EXPECT_EQ(at.at("gpt_neox.layers.3.mlp.dense_h_to_4h.weight").shape, (Shape{8192, 2048}));
  EXPECT_EQ(at.at("gpt_neox.layers.3.mlp.dense_4h_to_h.bias").shape, (Shape{2048}));
  EXPECT_EQ(at.at("gpt_neox.layers.3.input_layernorm.bias").shape, (Shape{2048}));
  EXPECT_EQ(at.at("gpt_neox.layers.3.post_attention_layernorm.weight").shape, (Shape{2048}));
  EXPECT_EQ(at.at("gpt_neox.final_layer_norm.bias").shape, (Shape{2048}));
  EXPECT_EQ(at.at("embed_out.weight").shape, (Shape{50304, 2048}));
}

TEST(Families, InitialValuesDecayAndSplitOfEachParameter) {
  for (ModelSpec model : {Llama2_7b(), Qwen2_5_1_5b(), Pythia1_4b()}) {
    model.initializer_range = 0.013;
    for (const auto& [name, parameter] : Parameters(model)) {
      const bool matrix = parameter.shape.size() == 2, norm = name.find("norm") != std::string::npos;
      EXPECT_EQ(parameter.init, matrix ? Init::kNormal : norm && name.ends_with("weight") ? Init::kOnes : Init::kZeros);
      EXPECT_EQ(parameter.init_std, matrix ? 0.013 : 0) << name;
      EXPECT_EQ(parameter.decay, matrix) << name;
      EXPECT_FALSE(parameter.transposed);
      const bool row_parallel =
          name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos ||
          name.find("dense.") != std::string::npos || name.find("dense_4h_to_h") != std::string::npos;
      EXPECT_EQ(parameter.tp_dim, norm ? -1 : !row_parallel ? 0 : matrix ? 1 : -1) << name;
    }
  }
}

// One product reads q | k | v, another gate | up: no gap lies between them, whatever their sizes.
TEST(Families, JoinedParametersLieEndToEnd) {
  ModelSpec model = Llama2_7b();
  model.num_layers = 1;
  model.hidden_size = 20;
  model.num_attention_heads = 3;
  model.num_key_value_heads = 1;
  model.head_size = 6;
  model.intermediate_size = 37;
  model.qkv_bias = model.mlp_bias = true;
  Config config;
  config.batch = {2, 1, 1};
  const Plan plan = MakePlan(config, model, {.world_size = 2, .sequence_length = 8});
  std::vector<std::string> joined;
  const std::vector<Segment>& segments = plan.units[1].segments;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (!segments[i].parameter.joined) {
      EXPECT_EQ(segments[i].begin % kSegmentAlignment, 0);
      continue;
    }
    joined.push_back(segments[i].parameter.name.substr(std::string("model.layers.0.").size()));
    EXPECT_EQ(segments[i].begin, segments[i - 1].begin + segments[i - 1].count);
  }
  EXPECT_EQ(joined,
            (std::vector<std::string>{"self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_proj.bias",
                                      "self_attn.v_proj.bias", "mlp.up_proj.weight", "mlp.up_proj.bias"}));
}

TEST(Families, SavedDeferredAndWorkspaceBytes) {
  ModelSpec model = Llama2_7b();
  model.num_key_value_heads = 8;
  const int64_t h = 4096, f = 11008, w = 4096 + 2 * 1024, tokens = 1024;
  const PlanDTypes dtypes{DType::kBFloat16, DType::kFloat32, DType::kFloat32, DType::kFloat32};
  const UnitSpec llama = MakeUnitSpecs(model, {DType::kBFloat16, tokens, 0, false, 0})[1];
  EXPECT_EQ(LayOutSaved(llama, dtypes, tokens).arena_bytes, tokens * ((3 * h + w + 3 * f) * 2 + 2 * 4));
  EXPECT_EQ(LayOutSaved(llama, dtypes, tokens).pool_bytes, tokens * (h * 2 + 32 * 4));
  EXPECT_EQ(LayOutSaved(llama.deferred, dtypes, tokens).arena_bytes, tokens * (2 * h + w + 2 * f) * 2);
  EXPECT_EQ(llama.backward_workspace.bytes_per_token, (3 * h + w + 3 * f) * 2 + 8 * 4);
  const UnitSpec dropped = MakeUnitSpecs(model, {DType::kBFloat16, tokens, 0, false, 0.1})[1];
  EXPECT_EQ(dropped.backward_workspace.bytes_per_token, (5 * h + w + 3 * f) * 2 + 8 * 4);
  const UnitSpec neox = MakeUnitSpecs(Pythia1_4b(), {DType::kBFloat16, tokens, 0, false, 0})[1];
  EXPECT_EQ(LayOutSaved(neox, dtypes, tokens).arena_bytes, tokens * ((2 + 3 + 8) * 2048 * 2 + 4 * 4));
}

TEST(Families, OperationsCountEveryProduct) {
  const auto gflop = [](const ModelSpec& model, int64_t sequence) {
    double forward = 0;
    for (const UnitSpec& unit : MakeUnitSpecs(model, {DType::kBFloat16, sequence, 0, false, 0})) {
      forward += unit.forward_flops_per_token;
    }
    return forward / 1e9;
  };
  // Twice the matrices' elements; attention adds 2 x width x sequence a layer.
  const double matrices = 2.0 * (6'738'415'616 - 32000.0 * 4096 - 65.0 * 4096);
  EXPECT_NEAR(gflop(Llama2_7b(), 4096), (matrices + 32 * 2.0 * 4096 * 4096) / 1e9, 1e-6);
}

std::string IdOf(const ModelSpec& model, int64_t sequence = 64) {
  Config config;
  config.batch = {1, 1, 1};
  try {
    MakePlan(config, model, {.sequence_length = sequence});
  } catch (const Error& error) {
    EXPECT_FALSE(error.fix().empty());
    return error.id();
  }
  return "";
}

TEST(Families, WhatCannotBePlannedSaysWhy) {
  ModelSpec model = Llama2_7b();
  model.head_size = 100;  // heads of their own size, of a hidden size that does not divide
  model.hidden_size = 4100;
  EXPECT_EQ(IdOf(model), "");
  model.head_size = 0;
  EXPECT_EQ(IdOf(model), "PLN005");
  model = Llama2_7b();
  model.num_key_value_heads = 5;
  EXPECT_EQ(IdOf(model), "PLN006");
  model = Llama2_7b();
  EXPECT_EQ(IdOf(model, 4097), "PLN007");
  model.rope.scaling = RopeSpec::Scaling::kLinear;
  model.rope.factor = 2;
  EXPECT_EQ(IdOf(model, 4097), "");
  EXPECT_EQ(IdOf(model, 8193), "PLN007");
  model.activation = Activation::kGelu;
  EXPECT_EQ(IdOf(model), "PLN008");
  model = Llama2_7b();
  model.rope.rotary_fraction = 0.001;
  EXPECT_EQ(IdOf(model), "PLN009");
  model.rope = {.scaling = RopeSpec::Scaling::kLongRope, .short_factor = {1}, .long_factor = {1}};
  EXPECT_EQ(IdOf(model), "PLN009");
  model = Pythia1_4b();
  EXPECT_EQ(IdOf(model), "");
  model.head_size = 64;
  EXPECT_EQ(IdOf(model), "PLN005");
  model = Pythia1_4b();
  model.num_key_value_heads = 8;
  EXPECT_EQ(IdOf(model), "PLN006");
  model = Pythia1_4b();
  model.activation = Activation::kSilu;
  EXPECT_EQ(IdOf(model), "PLN008");
}

}  // namespace
}  // namespace trireme
