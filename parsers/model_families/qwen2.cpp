// Qwen2 and Qwen2.5 (arXiv:2407.10671, arXiv:2412.15115; model_type "qwen2"): LLaMA's layers with biases on queries,
// keys and values.
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "parsers/model_families/family.h"

namespace trireme {
namespace {

constexpr RopeKeys kRope = {"rope_theta", "partial_rotary_factor", 1};

void SetKind(ModelSpec& spec) {
  spec.family = Family::kQwen2;
  spec.qkv_bias = true;
  spec.attention_out_bias = spec.mlp_bias = false;
  spec.activation = Activation::kSilu;
  spec.layer_norm_epsilon = 1e-6;
}

// transformers 5 writes for each layer what its attention sees.
void CheckLayerTypes(SectionReader& in) {
  const JsonValue* types = in.Take("layer_types");
  if (types == nullptr) return;
  for (const JsonValue& type : types->elements) {
    if (type.text == "full_attention") continue;
    in.diagnostics().Error("MOD005", in.At("layer_types"), "layer_types",
                           fmt::format("{} is not supported", Describe(type)), "only \"full_attention\" is");
    return;
  }
}

void Read(SectionReader& in, ModelSpec& spec) {
  SetKind(spec);
  spec.tie_word_embeddings = false;
  ReadSizes(in, spec);
  ReadHeads(in, 32, spec);
  ReadNumber(in, "rms_norm_eps", spec.layer_norm_epsilon, Between(0, 1));
  ReadNumber(in, "initializer_range", spec.initializer_range, Between(0, 10));
  ReadFlag(in, "tie_word_embeddings", spec.tie_word_embeddings);
  ReadActivation(in, "hidden_act", kSilus, spec.activation);
  ReportDropout(in, {"attention_dropout"});
  RequireFlag(in, "use_sliding_window", false);
  in.Take("sliding_window");  // has no effect then
  CheckLayerTypes(in);
  ReadTokenIds(in, std::nullopt, std::nullopt, spec);
  CheckHeads(in, "hidden_size", spec);
  ReadRope(in, kRope, spec);
}

void Write(const ModelSpec& spec, nlohmann::json& out) {
  WriteSizes(spec, out);
  out["num_attention_heads"] = spec.num_attention_heads;
  out["num_key_value_heads"] = spec.num_key_value_heads;
  if (spec.head_size > 0) out["head_dim"] = spec.head_size;
  out["rms_norm_eps"] = spec.layer_norm_epsilon;
  out["hidden_act"] = NameOf(spec.activation);
  out["use_sliding_window"] = false;
  out["attention_dropout"] = 0.0;
  WriteRope(spec, kRope, out);
}

}  // namespace

const ModelFamily kQwen2Family = {"qwen2", "Qwen2ForCausalLM", Family::kQwen2, Read, Write};

std::span<const ModelSpec> Qwen2Models() {
  static const std::vector<ModelSpec> models = [] {
    // name, layers, hidden, heads, key heads, inner, vocabulary, positions, tied
    const std::tuple<const char*, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool> shapes[] = {
        {"qwen2.5-0.5b", 24, 896, 14, 2, 4864, 151936, 32768, true},
        {"qwen2.5-1.5b", 28, 1536, 12, 2, 8960, 151936, 131072, true},
        {"qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, 131072, false}};
    std::vector<ModelSpec> all;
    for (const auto& [name, layers, hidden, heads, kv_heads, inner, vocabulary, positions, tied] : shapes) {
      ModelSpec spec;
      SetKind(spec);
      spec.name = name;
      spec.num_layers = layers;
      spec.hidden_size = hidden;
      spec.num_attention_heads = heads;
      spec.num_key_value_heads = kv_heads;
      spec.intermediate_size = inner;
      spec.vocab_size = vocabulary;
      spec.max_position_embeddings = positions;
      spec.tie_word_embeddings = tied;
      spec.rope.theta = 1e6;
      spec.bos_token_id = 151643;
      spec.eos_token_ids = {151643};
      all.push_back(std::move(spec));
    }
    return all;
  }();
  return models;
}

}  // namespace trireme
