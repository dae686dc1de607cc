// GPT-2 (Radford et al., 2019; model_type "gpt2"), and GPT-3's shapes (arXiv:2005.14165, table 2.1) by name: GPT-2's
// vocabulary of 50257 tokens, 2048 positions.
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "parsers/model_families/family.h"

namespace trireme {
namespace {

void Read(SectionReader& in, ModelSpec& spec) {
  ReadSize(in, {"n_layer", "num_hidden_layers"}, spec.num_layers);
  ReadSize(in, {"n_embd", "hidden_size"}, spec.hidden_size);
  ReadSize(in, {"n_head", "num_attention_heads"}, spec.num_attention_heads);
  ReadSize(in, {"vocab_size"}, spec.vocab_size);
  ReadSize(in, {"n_positions", "n_ctx", "max_position_embeddings"}, spec.max_position_embeddings);
  in.Take("n_ctx");
  spec.num_key_value_heads = spec.num_attention_heads;
  std::optional<int64_t> inner;
  in.ReadOptional("n_inner", inner, Between(1, 1e9));
  spec.intermediate_size = inner.value_or(4 * spec.hidden_size);
  ReadNumber(in, "layer_norm_epsilon", spec.layer_norm_epsilon, Between(0, 1));
  ReadNumber(in, "initializer_range", spec.initializer_range, Between(0, 10));
  ReadFlag(in, "tie_word_embeddings", spec.tie_word_embeddings);
  ReadActivation(in, "activation_function", kGelus, spec.activation);
  ReportDropout(in, {"resid_pdrop", "embd_pdrop", "attn_pdrop"});
  RequireFlag(in, "scale_attn_weights", true);
  RequireFlag(in, "scale_attn_by_inverse_layer_idx", false);
  ReadTokenIds(in, 50256, 50256, spec);
  CheckHeads(in, "n_embd", spec);
}

void Write(const ModelSpec& spec, nlohmann::json& out) {
  out["n_layer"] = spec.num_layers;
  out["n_embd"] = spec.hidden_size;
  out["n_head"] = spec.num_attention_heads;
  out["n_inner"] = spec.intermediate_size;
  out["n_positions"] = out["n_ctx"] = spec.max_position_embeddings;
  out["layer_norm_epsilon"] = spec.layer_norm_epsilon;
  out["activation_function"] = NameOf(spec.activation);
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) out[key] = 0.0;
}

}  // namespace

const ModelFamily kGpt2Family = {"gpt2", "GPT2LMHeadModel", Family::kGpt2, Read, Write};

std::span<const ModelSpec> Gpt2Models() {
  static const std::vector<ModelSpec> models = [] {
    const std::tuple<const char*, int64_t, int64_t, int64_t> shapes[] = {
        {"gpt-125m", 12, 768, 12},  {"gpt-350m", 24, 1024, 16}, {"gpt-760m", 24, 1536, 16}, {"gpt-large", 24, 1536, 16},
        {"gpt-1.3b", 24, 2048, 16}, {"gpt-2.7b", 32, 2560, 20}, {"gpt-6.7b", 32, 4096, 32}, {"gpt-13b", 40, 5120, 40}};
    std::vector<ModelSpec> all;
    for (const auto& [name, layers, hidden, heads] : shapes) {
      ModelSpec spec;
      spec.name = name;
      spec.num_layers = layers;
      spec.hidden_size = hidden;
      spec.num_attention_heads = spec.num_key_value_heads = heads;
      spec.intermediate_size = 4 * hidden;
      spec.vocab_size = 50257;
      spec.max_position_embeddings = 2048;
      spec.bos_token_id = 50256;
      spec.eos_token_ids = {50256};
      all.push_back(std::move(spec));
    }
    return all;
  }();
  return models;
}

}  // namespace trireme
