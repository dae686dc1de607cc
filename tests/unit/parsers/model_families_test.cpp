// Every key of a config.json that changes the arithmetic is read or refused; what is written is read back equal.
#include <gtest/gtest.h>

#include <string>

#include "config_testing.h"
#include "engine/base/error.h"
#include "parsers/model_config.h"
#include "parsers/model_text.h"

namespace trireme {
namespace {

using testing::Contains;

const char* kLlama = R"("model_type":"llama","num_hidden_layers":2,"hidden_size":48,"num_attention_heads":6,
  "intermediate_size":72,"vocab_size":100,"max_position_embeddings":64)";
const char* kMistral = R"("model_type":"mistral","num_hidden_layers":2,"hidden_size":48,"num_attention_heads":8,
  "intermediate_size":72,"vocab_size":100,"max_position_embeddings":64)";
const char* kQwen2 = R"("model_type":"qwen2","num_hidden_layers":2,"hidden_size":48,"num_attention_heads":6,
  "num_key_value_heads":2,"intermediate_size":72,"vocab_size":100,"max_position_embeddings":64)";
const char* kNeoX = R"("model_type":"gpt_neox","num_hidden_layers":2,"hidden_size":48,"num_attention_heads":6,
  "intermediate_size":72,"vocab_size":100,"max_position_embeddings":64)";
const char* kGpt2 = R"("model_type":"gpt2","n_layer":2,"n_embd":48,"n_head":6,"vocab_size":100,"n_positions":64)";

struct Outcome {
  ModelSpec spec;
  std::string errors, text;  // "MOD005 hidden_act;", everything rendered
};
Outcome Read(const std::string& base, const std::string& more = "") {
  Diagnostics diagnostics;
  Outcome outcome;
  outcome.spec = ReadModelText("{" + base + (more.empty() ? "" : "," + more) + "}", "config.json", diagnostics);
  for (const Problem& p : diagnostics.problems()) {
    if (p.severity == Severity::kError) outcome.errors += p.id + " " + p.key + ";";
  }
  outcome.text = diagnostics.Render();
  return outcome;
}
RopeSpec Rope(const std::string& base, const std::string& more) {
  const Outcome outcome = Read(base, more);
  EXPECT_EQ("", outcome.errors) << outcome.text;
  return outcome.spec.rope;
}

void ExpectEqual(const ModelSpec& want, const ModelSpec& got) {
  EXPECT_EQ(want.name, got.name);
  EXPECT_EQ(want.family, got.family);
  EXPECT_EQ(want.num_layers, got.num_layers);
  EXPECT_EQ(want.hidden_size, got.hidden_size);
  EXPECT_EQ(want.num_attention_heads, got.num_attention_heads);
  EXPECT_EQ(want.num_key_value_heads, got.num_key_value_heads);
  EXPECT_EQ(want.head_size, got.head_size);
  EXPECT_EQ(want.intermediate_size, got.intermediate_size);
  EXPECT_EQ(want.vocab_size, got.vocab_size);
  EXPECT_EQ(want.padded_vocab_size, got.padded_vocab_size);
  EXPECT_EQ(want.max_position_embeddings, got.max_position_embeddings);
  EXPECT_EQ(want.layer_norm_epsilon, got.layer_norm_epsilon);
  EXPECT_EQ(want.initializer_range, got.initializer_range);
  EXPECT_EQ(want.tie_word_embeddings, got.tie_word_embeddings);
  EXPECT_EQ(want.activation, got.activation);
  EXPECT_EQ(want.qkv_bias, got.qkv_bias);
  EXPECT_EQ(want.attention_out_bias, got.attention_out_bias);
  EXPECT_EQ(want.mlp_bias, got.mlp_bias);
  EXPECT_EQ(want.parallel_residual, got.parallel_residual);
  EXPECT_TRUE(want.rope == got.rope);
  EXPECT_EQ(want.bos_token_id, got.bos_token_id);
  EXPECT_EQ(want.pad_token_id, got.pad_token_id);
  EXPECT_EQ(want.eos_token_ids, got.eos_token_ids);
}

TEST(ModelFamilies, PublishedModelsHaveTheirPublishedSizes) {
  const std::pair<const char*, int64_t> models[] = {{"llama-7b", 6738415616},    {"llama2-7b", 6738415616},
                                                    {"llama2-13b", 13015864320}, {"llama3-8b", 8030261248},
                                                    {"qwen2.5-0.5b", 494032768}, {"qwen2.5-1.5b", 1543714304},
                                                    {"qwen2.5-7b", 7615616512},  {"pythia-160m", 162322944},
                                                    {"pythia-1.4b", 1414647808}, {"pythia-6.9b", 6857302016}};
  for (const auto& [name, parameters] : models) EXPECT_EQ(parameters, NumParameters(NamedModel(name))) << name;
  const ModelSpec llama3 = NamedModel("llama3-8b"), qwen = NamedModel("Qwen2.5-1.5B"),
                  pythia = NamedModel("pythia-1.4b");
  EXPECT_EQ(8, llama3.num_key_value_heads);
  EXPECT_EQ(500000, llama3.rope.theta);
  EXPECT_EQ(8192, llama3.max_position_embeddings);
  EXPECT_EQ(1e-5, llama3.layer_norm_epsilon);
  EXPECT_FALSE(llama3.qkv_bias);
  EXPECT_TRUE(qwen.tie_word_embeddings);
  EXPECT_TRUE(qwen.qkv_bias);
  EXPECT_FALSE(qwen.attention_out_bias);
  EXPECT_EQ(1e6, qwen.rope.theta);
  EXPECT_TRUE(pythia.parallel_residual);
  EXPECT_EQ(0.25, pythia.rope.rotary_fraction);
  EXPECT_EQ(Activation::kGelu, pythia.activation);
  EXPECT_EQ(2048, NamedModel("llama-7b").max_position_embeddings);
  EXPECT_EQ(1e-6, NamedModel("llama-7b").layer_norm_epsilon);
}

TEST(ModelFamilies, WhatIsWrittenIsReadBackEqual) {
  for (const std::string& name : ModelNames()) {
    SCOPED_TRACE(name);
    ModelSpec model = NamedModel(name);
    model.padded_vocab_size = 1'000'064;
    model.initializer_range = 0.0123;
    model.pad_token_id = 7;
    model.eos_token_ids = {1, 5};
    ExpectEqual(model, ModelFromJson(ModelToJson(model, DType::kBFloat16), "text"));
    const std::string config = HuggingFaceConfig(model, DType::kFloat16);
    EXPECT_EQ(DType::kFloat16, WeightsDType(config));
    EXPECT_FALSE(Contains(config, "padded_vocab_size"));
  }
}

TEST(ModelFamilies, EveryFieldIsWritten) {
  ModelSpec model = Read(kLlama, R"("head_dim":10,"num_key_value_heads":3,"attention_bias":true,"mlp_bias":true,
    "tie_word_embeddings":true,"rms_norm_eps":3e-4)")
                        .spec;
  model.name = "own";
  EXPECT_EQ(10, model.HeadSize());
  EXPECT_TRUE(model.qkv_bias && model.attention_out_bias && model.mlp_bias && model.tie_word_embeddings);
  using Scaling = RopeSpec::Scaling;
  RopeSpec yarn{.theta = 7, .scaling = Scaling::kYarn, .factor = 2.5, .original_max_position_embeddings = 16};
  yarn.attention_factor = 1.25;
  yarn.beta_fast = 8;
  yarn.beta_slow = 0.5;
  yarn.mscale = 0.7;
  yarn.mscale_all_dim = 0.6;
  yarn.truncate = false;
  RopeSpec longrope{.scaling = Scaling::kLongRope, .factor = 2, .original_max_position_embeddings = 32};
  longrope.short_factor = {1, 1, 1.5, 2, 2.25};
  longrope.long_factor = {1, 2, 3, 4, 5};
  RopeSpec llama3{.scaling = Scaling::kLlama3, .factor = 8, .original_max_position_embeddings = 16};
  llama3.low_freq_factor = 2;
  llama3.high_freq_factor = 3;
  for (const RopeSpec& rope : {RopeSpec{.scaling = Scaling::kLinear, .factor = 3},
                               RopeSpec{.scaling = Scaling::kDynamic, .factor = 1.5}, yarn, longrope, llama3}) {
    model.rope = rope;
    ExpectEqual(model, ModelFromJson(ModelToJson(model, DType::kFloat32), "text"));
  }
  ModelSpec neox = Read(kNeoX, R"("use_parallel_residual":false,"attention_bias":false,"hidden_act":"gelu_fast",
    "rotary_pct":0.5,"layer_norm_eps":2e-5,"tie_word_embeddings":true)")
                       .spec;
  EXPECT_FALSE(neox.parallel_residual || neox.qkv_bias || neox.attention_out_bias);
  EXPECT_TRUE(neox.mlp_bias && neox.tie_word_embeddings);
  EXPECT_EQ(Activation::kGeluTanh, neox.activation);
  ExpectEqual(neox, ModelFromJson(ModelToJson(neox, DType::kFloat32), "text"));
  ModelSpec gpt2 = Read(kGpt2, R"("activation_function":"gelu","n_inner":100)").spec;
  EXPECT_EQ(Activation::kGelu, gpt2.activation);
  ExpectEqual(gpt2, ModelFromJson(ModelToJson(gpt2, DType::kFloat32), "text"));
}

TEST(ModelFamilies, DefaultsAreTheFamilysOwn) {
  EXPECT_TRUE(Read(kGpt2).spec.tie_word_embeddings);
  const ModelSpec llama = Read(kLlama).spec, mistral = Read(kMistral, R"("sliding_window":null)").spec,
                  qwen2 = Read(kQwen2).spec, neox = Read(kNeoX).spec;
  for (const ModelSpec& spec : {llama, mistral, qwen2, neox}) EXPECT_FALSE(spec.tie_word_embeddings);
  EXPECT_EQ(6, llama.num_key_value_heads);
  EXPECT_EQ(8, mistral.num_key_value_heads);
  EXPECT_EQ(Family::kLlama, mistral.family);
  EXPECT_EQ(1e-6, llama.layer_norm_epsilon);
  EXPECT_EQ(1e-5, neox.layer_norm_epsilon);
  EXPECT_TRUE(neox.parallel_residual && neox.qkv_bias && neox.attention_out_bias);
  EXPECT_EQ(0.25, neox.rope.rotary_fraction);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.attention_out_bias || qwen2.mlp_bias);
  EXPECT_EQ(std::vector<int64_t>{2}, llama.eos_token_ids);
  EXPECT_TRUE(Read(kLlama, R"("eos_token_id":null)").spec.eos_token_ids.empty());
  EXPECT_EQ((std::vector<int64_t>{9, 4}), Read(kLlama, R"("eos_token_id":[9,4])").spec.eos_token_ids);
  EXPECT_TRUE(Read(kGpt2).spec.eos_token_ids.empty());  // 50256 is past this vocabulary
  EXPECT_EQ(6, Read(kLlama, R"("num_key_value_heads":null)").spec.num_key_value_heads);
}

TEST(ModelFamilies, RotaryPositionsInBothSpellings) {
  using Scaling = RopeSpec::Scaling;
  RopeSpec linear{.theta = 500, .scaling = Scaling::kLinear, .factor = 2};
  EXPECT_EQ(linear, Rope(kLlama, R"("rope_theta":500,"rope_scaling":{"type":"linear","factor":2})"));
  EXPECT_EQ(linear, Rope(kLlama, R"("rope_theta":500.0,"rope_scaling":{"rope_type":"linear","factor":2.0})"));
  EXPECT_EQ(linear, Rope(kLlama, R"("rope_parameters":{"rope_theta":500,"rope_type":"linear","factor":2})"));
  EXPECT_EQ(linear, Rope(kLlama, R"("rope_theta":500,"rope_scaling":{"type":"linear","rope_type":"linear","factor":2},
    "rope_parameters":{"rope_theta":500,"rope_type":"linear","factor":2})"));
  EXPECT_EQ(RopeSpec{.theta = 500}, Rope(kLlama, R"("rope_theta":500,"rope_scaling":null)"));
  EXPECT_EQ(RopeSpec{.theta = 500}, Rope(kQwen2, R"("rope_parameters":{"rope_theta":500,"rope_type":"default"})"));
  const RopeSpec yarn = Rope(kLlama, R"("rope_scaling":{"type":"yarn","original_max_position_embeddings":16})");
  EXPECT_EQ(4, yarn.factor);  // 64 / 16, where it is not written
  const RopeSpec phi = Rope(kLlama, R"("original_max_position_embeddings":32,"rope_scaling":{"type":"su",
    "short_factor":[1,1,1,1],"long_factor":[2,2,2,2]})");
  EXPECT_EQ(Scaling::kLongRope, phi.scaling);
  EXPECT_EQ(32, phi.original_max_position_embeddings);
  EXPECT_EQ(2, phi.factor);
  RopeSpec half{.theta = 800, .rotary_fraction = 0.5};
  EXPECT_EQ(half, Rope(kNeoX, R"("rotary_pct":0.5,"rotary_emb_base":800)"));
  EXPECT_EQ(half,
            Rope(kNeoX, R"("rotary_pct":0.5,"rotary_emb_base":800,"rope_theta":800,"partial_rotary_factor":0.5)"));
  EXPECT_EQ(half, Rope(kNeoX, R"("rope_parameters":{"rope_theta":800,"partial_rotary_factor":0.5})"));
}

TEST(ModelFamilies, WhatNoLayerDoesIsRefusedByName) {
  const struct {
    const char *base, *more, *errors;
  } cases[] = {
      {kLlama, R"("hidden_act":"relu")", "MOD005 hidden_act;"},
      {kQwen2, R"("hidden_act":"gelu")", "MOD005 hidden_act;"},
      {kNeoX, R"("hidden_act":"silu")", "MOD005 hidden_act;"},
      {kGpt2, R"("scale_attn_weights":false)", "MOD005 scale_attn_weights;"},
      {kQwen2, R"("use_sliding_window":true,"sliding_window":16)", "MOD005 use_sliding_window;"},
      {kQwen2, R"("layer_types":["full_attention","sliding_attention"])", "MOD005 layer_types;"},
      {kMistral, "", "MOD005 sliding_window;"},
      {kMistral, R"("sliding_window":4096)", "MOD005 sliding_window;"},
      {kLlama, R"("quantization_config":{"bits":4})", "MOD005 quantization_config;"},
      {kLlama, R"("num_key_value_heads":4)", "MOD004 num_key_value_heads;"},
      {kLlama, R"("partial_rotary_factor":0.5)", "MOD005 partial_rotary_factor;"},
      {kNeoX, R"("rotary_pct":0.05)", "MOD005 rotary_pct;"},
      {kLlama, R"("rope_scaling":{"rope_type":"mrope"})", "MOD005 rope_scaling.rope_type;"},
      {kLlama, R"("rope_scaling":{"type":"linear"})", "MOD006 rope_scaling.factor;"},
      {kLlama, R"("rope_scaling":{"type":"default","mrope_section":[1,2]})", "CFG004 rope_scaling.mrope_section;"},
      {kLlama, R"("rope_scaling":{"rope_type":"llama3","factor":2,"low_freq_factor":1})",
       "MOD006 rope_scaling.high_freq_factor;"},
      {kLlama, R"("rope_scaling":{"type":"longrope","factor":2,"short_factor":[1,1,1],"long_factor":[1,1,1,1]})",
       "MOD005 rope_scaling.short_factor;"},
      {kLlama, R"("rope_scaling":{"type":"linear","rope_type":"dynamic","factor":2})", "MOD009 rope_scaling.type;"},
      {kLlama, R"("rope_theta":500,"rope_parameters":{"rope_theta":600})", "MOD009 rope_theta;"},
      {kNeoX, R"("rotary_emb_base":500,"rope_theta":600)", "MOD009 rope_theta;"},
      {kLlama, R"("rope_scaling":{"type":"linear","factor":2},"rope_parameters":{"rope_type":"linear","factor":3})",
       "MOD009 rope_scaling;"},
  };
  for (const auto& c : cases) {
    const Outcome outcome = Read(c.base, c.more);
    EXPECT_EQ(c.errors, outcome.errors) << c.more << "\n" << outcome.text;
  }
  EXPECT_TRUE(Contains(Read(kLlama, R"("rope_scaling":{"rope_type":"mrope"})").text, "supported: default, linear"));
  EXPECT_TRUE(Contains(Read(kMistral).text, "window of 4096"));
}

TEST(ModelFamilies, DropoutIsReportedAndUnknownKeysWarn) {
  EXPECT_TRUE(Contains(Read(kLlama, R"("attention_dropout":0.1)").text, "notice MOD007: config.json"));
  EXPECT_TRUE(Contains(Read(kNeoX, R"("hidden_dropout":0.1)").text, "dropout 0.1 is not taken"));
  const Outcome unknown = Read(kLlama, R"("rope_thetta":5,"transformers_version":"4.1","torch_dtype":"bfloat16")");
  EXPECT_EQ("", unknown.errors);
  EXPECT_TRUE(Contains(unknown.text, "warning MOD010"));
  EXPECT_TRUE(Contains(unknown.text, "did you mean \"rope_theta\"?"));
  EXPECT_FALSE(Contains(unknown.text, "torch_dtype"));
}

// The text that this program's first checkpoints carry.
TEST(ModelFamilies, TextsOfOlderCheckpointsAreRead) {
  const ModelSpec m = ModelFromJson(
      R"({"activation_function":"gelu_new","architectures":["GPT2LMHeadModel"],"initializer_range":0.02,
      "layer_norm_epsilon":1e-05,"model_type":"gpt2","n_embd":64,"n_head":4,"n_inner":256,"n_layer":2,"n_positions":128,
      "name":"gpt","padded_vocab_size":384,"tie_word_embeddings":false,"vocab_size":257})",
      "old");
  EXPECT_EQ("gpt", m.name);
  EXPECT_EQ(384, m.padded_vocab_size);
  EXPECT_EQ(256, m.intermediate_size);
  EXPECT_FALSE(m.tie_word_embeddings);
  try {
    ModelFromJson(R"({"model_type":"gpt2"})", "damaged");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ("MOD011", error.id());
    EXPECT_TRUE(Contains(error.what(), "n_layer"));
  }
}

}  // namespace
}  // namespace trireme
