// GPT-NeoX (arXiv:2204.06745; model_type "gpt_neox") and Pythia (arXiv:2304.01373).
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "parsers/model_families/family.h"

namespace trireme {
namespace {

constexpr RopeKeys kRope = {"rotary_emb_base", "rotary_pct", 0.25};

void SetKind(ModelSpec& spec) {
  spec.family = Family::kGptNeoX;
  spec.activation = Activation::kGelu;
  spec.tie_word_embeddings = false;
  spec.parallel_residual = true;
  spec.rope.rotary_fraction = kRope.fraction_default;
}

void Read(SectionReader& in, ModelSpec& spec) {
  SetKind(spec);
  ReadSizes(in, spec);
  ReadSize(in, {"num_attention_heads"}, spec.num_attention_heads);
  spec.num_key_value_heads = spec.num_attention_heads;
  ReadNumber(in, "layer_norm_eps", spec.layer_norm_epsilon, Between(0, 1));
  ReadNumber(in, "initializer_range", spec.initializer_range, Between(0, 10));
  ReadFlag(in, "tie_word_embeddings", spec.tie_word_embeddings);
  ReadFlag(in, "use_parallel_residual", spec.parallel_residual);
  ReadFlag(in, "attention_bias", spec.qkv_bias);
  spec.attention_out_bias = spec.qkv_bias;
  ReadActivation(in, "hidden_act", kGelus, spec.activation);
  ReportDropout(in, {"attention_dropout", "hidden_dropout"});
  ReadTokenIds(in, 0, 2, spec);
  CheckHeads(in, "hidden_size", spec);
  ReadRope(in, kRope, spec);
}

void Write(const ModelSpec& spec, nlohmann::json& out) {
  WriteSizes(spec, out);
  out["num_attention_heads"] = spec.num_attention_heads;
  out["layer_norm_eps"] = spec.layer_norm_epsilon;
  out["use_parallel_residual"] = spec.parallel_residual;
  out["attention_bias"] = spec.qkv_bias;
  out["hidden_act"] = NameOf(spec.activation);
  out["attention_dropout"] = out["hidden_dropout"] = 0.0;
  WriteRope(spec, kRope, out);
}

}  // namespace

const ModelFamily kGptNeoXFamily = {"gpt_neox", "GPTNeoXForCausalLM", Family::kGptNeoX, Read, Write};

std::span<const ModelSpec> GptNeoXModels() {
  static const std::vector<ModelSpec> models = [] {
    const std::tuple<const char*, int64_t, int64_t, int64_t, int64_t> shapes[] = {{"pythia-160m", 12, 768, 12, 50304},
                                                                                  {"pythia-1.4b", 24, 2048, 16, 50304},
                                                                                  {"pythia-6.9b", 32, 4096, 32, 50432}};
    std::vector<ModelSpec> all;
    for (const auto& [name, layers, hidden, heads, vocabulary] : shapes) {
      ModelSpec spec;
      SetKind(spec);
      spec.name = name;
      spec.num_layers = layers;
      spec.hidden_size = hidden;
      spec.num_attention_heads = spec.num_key_value_heads = heads;
      spec.intermediate_size = 4 * hidden;
      spec.vocab_size = vocabulary;
      spec.max_position_embeddings = 2048;
      spec.bos_token_id = 0;
      spec.eos_token_ids = {0};
      all.push_back(std::move(spec));
    }
    return all;
  }();
  return models;
}

}  // namespace trireme
