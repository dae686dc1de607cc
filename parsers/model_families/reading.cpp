#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "engine/base/strings.h"
#include "parsers/model_families/family.h"

namespace trireme {
namespace {

// Keys of any config.json that change no arithmetic of a causal language model.
constexpr const char* kHarmless[] = {"architectures",
                                     "auto_map",
                                     "bad_words_ids",
                                     "begin_suppress_tokens",
                                     "bos_token_id",
                                     "chunk_size_feed_forward",
                                     "classifier_dropout",
                                     "cls_token_id",
                                     "cross_attention_hidden_size",
                                     "decoder_start_token_id",
                                     "diversity_penalty",
                                     "do_sample",
                                     "dtype",
                                     "early_stopping",
                                     "encoder_no_repeat_ngram_size",
                                     "eos_token_id",
                                     "exponential_decay_length_penalty",
                                     "finetuning_task",
                                     "forced_bos_token_id",
                                     "forced_eos_token_id",
                                     "gradient_checkpointing",
                                     "id2label",
                                     "initializer_range",
                                     "is_decoder",
                                     "label2id",
                                     "length_penalty",
                                     "max_length",
                                     "max_window_layers",
                                     "min_length",
                                     "model_max_length",
                                     "model_type",
                                     "name",
                                     "no_repeat_ngram_size",
                                     "num_beam_groups",
                                     "num_beams",
                                     "num_labels",
                                     "num_return_sequences",
                                     "output_attentions",
                                     "output_hidden_states",
                                     "output_scores",
                                     "pad_token_id",
                                     "padded_vocab_size",
                                     "prefix",
                                     "pretraining_tp",
                                     "problem_type",
                                     "remove_invalid_values",
                                     "reorder_and_upcast_attn",
                                     "repetition_penalty",
                                     "return_dict",
                                     "return_dict_in_generate",
                                     "sep_token_id",
                                     "suppress_tokens",
                                     "summary_activation",
                                     "summary_first_dropout",
                                     "summary_proj_to_labels",
                                     "summary_type",
                                     "summary_use_proj",
                                     "task_specific_params",
                                     "temperature",
                                     "tf_legacy_loss",
                                     "tokenizer_class",
                                     "top_k",
                                     "top_p",
                                     "torch_dtype",
                                     "torchscript",
                                     "transformers_version",
                                     "typical_p",
                                     "unk_token_id",
                                     "use_bfloat16",
                                     "use_cache"};

bool IsEmpty(const JsonValue& value) {
  return value.kind == JsonValue::Kind::kNull || (value.kind == JsonValue::Kind::kBool && !value.boolean) ||
         (value.kind == JsonValue::Kind::kObject && value.members.empty()) ||
         (value.kind == JsonValue::Kind::kArray && value.elements.empty());
}

void AddId(const JsonValue& value, const ModelSpec& spec, std::vector<int64_t>& ids) {
  if (value.kind == JsonValue::Kind::kInteger && value.integer >= 0 && value.integer < spec.vocab_size) {
    ids.push_back(value.integer);
  }
}

// Ids under `key`: one, a list, or none.
std::vector<int64_t> TokenIds(SectionReader& in, const char* key, std::optional<int64_t> absent,
                              const ModelSpec& spec) {
  std::vector<int64_t> ids;
  const JsonValue* value = in.Take(key);
  if (value == nullptr) {
    if (absent && *absent < spec.vocab_size) ids.push_back(*absent);
    return ids;
  }
  AddId(*value, spec, ids);
  for (const JsonValue& element : value->elements) AddId(element, spec, ids);
  return ids;
}

std::optional<int64_t> First(const std::vector<int64_t>& ids) {
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

}  // namespace

void ReadSize(SectionReader& in, std::initializer_list<const char*> keys, int64_t& value) {
  const char* key = *keys.begin();
  for (const char* name : keys) {
    in.Know(name);
    if (in.Has(name)) {
      in.Read(name, value, Between(1, 1e9));
      return;
    }
  }
  in.diagnostics().Error("MOD006", in.Here(), key, "the size is missing", fmt::format("write \"{}\"", key));
}

void ReadNumber(SectionReader& in, const char* key, double& value, Range range) {
  in.Has(key) ? (void)in.Read(key, value, range) : (void)in.Take(key);
}

void ReadFlag(SectionReader& in, const char* key, bool& value) {
  in.Has(key) ? (void)in.Read(key, value) : (void)in.Take(key);
}

void RequireFlag(SectionReader& in, const char* key, bool only) {
  bool read = only;
  ReadFlag(in, key, read);
  if (read == only) return;
  in.diagnostics().Error("MOD005", in.At(key), key, fmt::format("{} is not supported", read),
                         fmt::format("only {} is", only));
}

void ReadActivation(SectionReader& in, const char* key, std::span<const ActivationName> known, Activation& value) {
  std::string text(known.front().name);
  if (!in.Has(key)) {
    in.Take(key);
    return;
  }
  if (!in.Read(key, text)) return;
  std::vector<std::string> names;
  for (const ActivationName& activation : known) {
    if (text == activation.name) {
      value = activation.activation;
      return;
    }
    names.emplace_back(activation.name);
  }
  in.diagnostics().Error("MOD005", in.At(key), key, fmt::format("{} is not supported", Quoted(text)),
                         "supported: " + Join(names, ", "));
}

std::string_view NameOf(Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh:
      return "gelu_new";
    case Activation::kGelu:
      return "gelu";
    case Activation::kSilu:
      break;
  }
  return "silu";
}

void ReportDropout(SectionReader& in, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    double rate = 0;
    ReadNumber(in, key, rate, Between(0, 1));
    if (rate > 0) {
      in.diagnostics().Notice("MOD007", in.At(key), key,
                              fmt::format("dropout {} is not taken: --hidden-dropout says how much there is", rate));
    }
  }
}

void ReadSizes(SectionReader& in, ModelSpec& spec) {
  ReadSize(in, {"num_hidden_layers"}, spec.num_layers);
  ReadSize(in, {"hidden_size"}, spec.hidden_size);
  ReadSize(in, {"intermediate_size"}, spec.intermediate_size);
  ReadSize(in, {"vocab_size"}, spec.vocab_size);
  ReadSize(in, {"max_position_embeddings"}, spec.max_position_embeddings);
}

void WriteSizes(const ModelSpec& spec, nlohmann::json& out) {
  out["num_hidden_layers"] = spec.num_layers;
  out["hidden_size"] = spec.hidden_size;
  out["intermediate_size"] = spec.intermediate_size;
  out["max_position_embeddings"] = spec.max_position_embeddings;
}

void ReadHeads(SectionReader& in, int64_t absent_kv_heads, ModelSpec& spec) {
  ReadSize(in, {"num_attention_heads"}, spec.num_attention_heads);
  std::optional<int64_t> kv_heads, head_dim;
  const bool written = in.Take("num_key_value_heads") != nullptr;
  in.ReadOptional("num_key_value_heads", kv_heads, Between(1, 1e9));
  spec.num_key_value_heads =
      kv_heads.value_or(written || absent_kv_heads == 0 ? spec.num_attention_heads : absent_kv_heads);
  in.ReadOptional("head_dim", head_dim, Between(1, 1e6));
  spec.head_size = head_dim && *head_dim * spec.num_attention_heads != spec.hidden_size ? *head_dim : 0;
}

void CheckHeads(SectionReader& in, const char* hidden_key, const ModelSpec& spec) {
  if (in.diagnostics().HasErrors()) return;
  const int64_t heads = spec.num_attention_heads, kv = spec.num_key_value_heads;
  if (spec.head_size == 0 && spec.hidden_size % heads != 0) {
    in.diagnostics().Error(
        "MOD004", in.At(hidden_key), hidden_key, fmt::format("{} is no multiple of {} heads", spec.hidden_size, heads),
        "take another file: this one describes no model, or write \"head_dim\" where the family has it");
  }
  if (heads % kv != 0) {
    in.diagnostics().Error("MOD004", in.At("num_key_value_heads"), "num_key_value_heads",
                           fmt::format("{} attention heads are no multiple of {} key and value heads", heads, kv),
                           "each key head serves equally many heads: write a divisor");
  }
}

void ReadTokenIds(SectionReader& in, std::optional<int64_t> bos, std::optional<int64_t> eos, ModelSpec& spec) {
  spec.bos_token_id = First(TokenIds(in, "bos_token_id", bos, spec));
  spec.eos_token_ids = TokenIds(in, "eos_token_id", eos, spec);
  spec.pad_token_id = First(TokenIds(in, "pad_token_id", std::nullopt, spec));
}

void CheckCommonKeys(SectionReader& in) {
  for (const char* key : {"quantization_config", "compression_config", "pruned_heads", "use_bidirectional_attention",
                          "is_encoder_decoder", "add_cross_attention", "use_mrope", "layer_norm_type", "embedding_size",
                          "logit_scale", "logits_scaling", "residual_multiplier", "embedding_multiplier"}) {
    const JsonValue* value = in.Take(key);
    if (value == nullptr || IsEmpty(*value)) continue;
    const bool weights = std::string_view(key).ends_with("n_config");
    in.diagnostics().Error(
        "MOD005", in.At(key), key, fmt::format("{} is not supported", Describe(*value)),
        weights ? "take the folder with the weights in fp32, bf16 or fp16" : "take a model without it");
  }
}

void WarnOfUnread(SectionReader& in) {
  for (const char* key : kHarmless) in.Take(key);
  for (const JsonMember* member : in.Unread()) {
    const std::vector<std::string> names(in.known_names().begin(), in.known_names().end());
    const std::optional<std::string> near = Suggest(member->key, names);
    in.diagnostics().Warning(
        "MOD010", in.At(member->key), member->key, "unknown key, which has no effect",
        near ? fmt::format("did you mean \"{}\"?", *near) : "remove it, if the model does not depend on it");
  }
}

void WriteTokenIds(const ModelSpec& spec, nlohmann::json& out) {
  const auto id = [](const std::optional<int64_t>& value) { return value ? nlohmann::json(*value) : nlohmann::json(); };
  out["bos_token_id"] = id(spec.bos_token_id);
  out["pad_token_id"] = id(spec.pad_token_id);
  out["eos_token_id"] = spec.eos_token_ids.empty()       ? nlohmann::json()
                        : spec.eos_token_ids.size() == 1 ? nlohmann::json(spec.eos_token_ids.front())
                                                         : nlohmann::json(spec.eos_token_ids);
}

}  // namespace trireme
