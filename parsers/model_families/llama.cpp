// LLaMA (arXiv:2302.13971), LLaMA 2 (arXiv:2307.09288) and 3 (arXiv:2407.21783), model_type "llama"; and Mistral
// (arXiv:2310.06825, model_type "mistral"), whose layers and names are the same where it has no sliding window.
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "parsers/model_families/family.h"

namespace trireme {
namespace {

constexpr RopeKeys kRope = {"rope_theta", "partial_rotary_factor", 1};

// What both kinds have.
void ReadCommon(SectionReader& in, int64_t absent_kv_heads, ModelSpec& spec) {
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = spec.tie_word_embeddings = false;
  spec.activation = Activation::kSilu;
  spec.layer_norm_epsilon = 1e-6;
  ReadSizes(in, spec);
  ReadHeads(in, absent_kv_heads, spec);
  ReadNumber(in, "rms_norm_eps", spec.layer_norm_epsilon, Between(0, 1));
  ReadNumber(in, "initializer_range", spec.initializer_range, Between(0, 10));
  ReadFlag(in, "tie_word_embeddings", spec.tie_word_embeddings);
  ReadActivation(in, "hidden_act", kSilus, spec.activation);
  ReportDropout(in, {"attention_dropout"});
  ReadTokenIds(in, 1, 2, spec);
  CheckHeads(in, "hidden_size", spec);
  ReadRope(in, kRope, spec);
}

void ReadLlama(SectionReader& in, ModelSpec& spec) {
  ReadCommon(in, 0, spec);
  ReadFlag(in, "attention_bias", spec.qkv_bias);
  spec.attention_out_bias = spec.qkv_bias;
  ReadFlag(in, "mlp_bias", spec.mlp_bias);
}

void ReadMistral(SectionReader& in, ModelSpec& spec) {
  ReadCommon(in, 8, spec);
  RequireFlag(in, "attention_bias", false);
  RequireFlag(in, "mlp_bias", false);
  const JsonValue* window = in.Take("sliding_window");
  if (window != nullptr && window->kind == JsonValue::Kind::kNull) return;
  in.diagnostics().Error(
      "MOD005", in.At("sliding_window"), "sliding_window",
      window == nullptr ? "the key is absent, which means a window of 4096 positions"
                        : fmt::format("{} is not supported: attention sees every earlier position", Describe(*window)),
      "only null is");
}

void Write(const ModelSpec& spec, nlohmann::json& out) {
  WriteSizes(spec, out);
  out["num_attention_heads"] = spec.num_attention_heads;
  out["num_key_value_heads"] = spec.num_key_value_heads;
  out["head_dim"] = spec.HeadSize();
  out["rms_norm_eps"] = spec.layer_norm_epsilon;
  out["hidden_act"] = NameOf(spec.activation);
  out["attention_bias"] = spec.qkv_bias;
  out["mlp_bias"] = spec.mlp_bias;
  out["attention_dropout"] = 0.0;
  WriteRope(spec, kRope, out);
}

ModelSpec Published(const char* name, int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t inner) {
  ModelSpec spec;
  spec.name = name;
  spec.family = Family::kLlama;
  spec.num_layers = layers;
  spec.hidden_size = hidden;
  spec.num_attention_heads = heads;
  spec.num_key_value_heads = kv_heads;
  spec.intermediate_size = inner;
  spec.vocab_size = 32000;
  spec.max_position_embeddings = 4096;
  spec.layer_norm_epsilon = 1e-5;
  spec.tie_word_embeddings = spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = false;
  spec.activation = Activation::kSilu;
  spec.bos_token_id = 1;
  spec.eos_token_ids = {2};
  return spec;
}

}  // namespace

const ModelFamily kLlamaFamily = {"llama", "LlamaForCausalLM", Family::kLlama, ReadLlama, Write};
const ModelFamily kMistralFamily = {"mistral", "MistralForCausalLM", Family::kLlama, ReadMistral, Write};

std::span<const ModelSpec> LlamaModels() {
  static const std::vector<ModelSpec> models = [] {
    ModelSpec first = Published("llama-7b", 32, 4096, 32, 32, 11008);
    first.max_position_embeddings = 2048;
    first.layer_norm_epsilon = 1e-6;
    ModelSpec third = Published("llama3-8b", 32, 4096, 32, 8, 14336);
    third.vocab_size = 128256;
    third.max_position_embeddings = 8192;
    third.rope.theta = 500000;
    third.bos_token_id = 128000;
    third.eos_token_ids = {128001};
    return std::vector<ModelSpec>{std::move(first), Published("llama2-7b", 32, 4096, 32, 32, 11008),
                                  Published("llama2-13b", 40, 5120, 40, 40, 13824), std::move(third)};
  }();
  return models;
}

}  // namespace trireme
