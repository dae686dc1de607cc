#include "parsers/model_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/strings.h"
#include "parsers/cli.h"
#include "parsers/json_tree.h"
#include "parsers/section_reader.h"

namespace trireme {
namespace {

struct NamedShape {
  const char* name;
  int64_t num_layers, hidden_size, num_attention_heads;
};
constexpr NamedShape kShapes[] = {
    {"gpt-125m", 12, 768, 12},  {"gpt-350m", 24, 1024, 16}, {"gpt-760m", 24, 1536, 16}, {"gpt-large", 24, 1536, 16},
    {"gpt-1.3b", 24, 2048, 16}, {"gpt-2.7b", 32, 2560, 20}, {"gpt-6.7b", 32, 4096, 32}, {"gpt-13b", 40, 5120, 40},
};
constexpr int64_t kVocabulary = 50257, kPositions = 2048;  // GPT-2's tokens, GPT-3's positions

ModelSpec GptShape(std::string name, int64_t num_layers, int64_t hidden_size, int64_t heads) {
  ModelSpec spec;
  spec.name = std::move(name);
  spec.num_layers = num_layers;
  spec.hidden_size = hidden_size;
  spec.num_attention_heads = heads;
  spec.num_key_value_heads = heads;
  spec.intermediate_size = 4 * hidden_size;
  spec.vocab_size = kVocabulary;
  spec.max_position_embeddings = kPositions;
  PadVocabulary(spec, 1);
  return spec;
}

[[noreturn]] void Fail(const char* id, const std::string& what, const std::string& where, const std::string& fix) {
  throw Error(ErrorCode::kConfig, id, what, where, fix);
}

// A size that GPT-2 files name `own`, and generic ones `common`.
void ReadSize(SectionReader& in, const std::string& own, const std::string& common, int64_t& value) {
  const std::string& key = in.Has(own) ? own : common;
  in.Know(own);
  in.Know(common);
  if (!in.Has(key)) {
    in.diagnostics().Error("MOD006", in.Here(), own, "the size is missing", fmt::format("write \"{}\"", own));
    return;
  }
  in.Read(key, value, Between(1, 1e9));
}

void ReportDropout(SectionReader& in) {
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    double rate = 0;
    if (in.Read(key, rate, Between(0, 1)) && rate > 0) {
      in.diagnostics().Notice("MOD007", in.At(key), key, fmt::format("dropout {} is not taken: it is 0 here", rate));
    }
  }
}

void CheckVariants(SectionReader& in) {
  std::string activation = "gelu_new";
  in.Read("activation_function", activation);
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh" && activation != "gelu_fast") {
    in.diagnostics().Error("MOD005", in.At("activation_function"), "activation_function",
                           fmt::format("{} is not supported", Quoted(activation)),
                           "supported: gelu_new, gelu_pytorch_tanh, gelu_fast, which are one function");
  }
  const std::pair<const char*, bool> wanted[] = {
      {"scale_attn_weights", true}, {"scale_attn_by_inverse_layer_idx", false}, {"add_cross_attention", false}};
  for (const auto& [key, value] : wanted) {
    bool read = value;
    in.Read(key, read);
    if (read == value) continue;
    in.diagnostics().Error("MOD005", in.At(key), key, fmt::format("{} is not supported", read),
                           fmt::format("only {} is", value));
  }
}

void CheckShape(const ModelSpec& spec, const std::string& where) {
  constexpr int64_t kMostLayers = 30'000;
  if (spec.num_layers > kMostLayers) {
    Fail("MOD003", fmt::format("{} layers are out of range: at most {}", spec.num_layers, kMostLayers), where,
         "pass a number in range");
  }
  if (spec.hidden_size % spec.num_attention_heads != 0) {
    Fail("MOD004", fmt::format("hidden size {} is no multiple of {} heads", spec.hidden_size, spec.num_attention_heads),
         where,
         fmt::format("take {} or {} as hidden size",
                     spec.hidden_size / spec.num_attention_heads * spec.num_attention_heads,
                     (spec.hidden_size / spec.num_attention_heads + 1) * spec.num_attention_heads));
  }
}

ModelSpec FromShapeFlags(const ModelFlags& flags) {
  const auto need = [](const std::optional<int64_t>& value, const char* flag) {
    if (!value) Fail("MOD002", "the shape of the model is not complete", flag, fmt::format("pass {} N too", flag));
    return *value;
  };
  return GptShape("gpt", need(flags.num_layers, "--num-layers"), need(flags.hidden_size, "--hidden-size"),
                  need(flags.num_attention_heads, "--num-attention-heads"));
}

void CheckFlags(const ModelFlags& flags, const std::string& init_from) {
  const std::pair<const char*, std::optional<int64_t>> sizes[] = {
      {"--num-layers", flags.num_layers},
      {"--hidden-size", flags.hidden_size},
      {"--num-attention-heads", flags.num_attention_heads},
      {"--vocab-size", flags.vocab_size},
      {"--max-position-embeddings", flags.max_position_embeddings}};
  const bool described = !init_from.empty() || !flags.model_name.empty();
  for (size_t i = 0; i < std::size(sizes); ++i) {
    const auto& [flag, value] = sizes[i];
    if (value && (*value < 1 || *value > 1'000'000'000)) {
      Fail("MOD003", fmt::format("{} is out of range: it must be 1 to 1e9", *value), flag, "pass a size in range");
    }
    if (value && (i < 3 ? described : !init_from.empty())) {
      Fail("MOD003",
           fmt::format("the flag stands beside {}, which fixes it",
                       init_from.empty() ? "--model_name " + flags.model_name : "--init-from " + init_from),
           flag, "remove one of the two");
    }
  }
}

}  // namespace

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const NamedShape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

ModelSpec NamedModel(std::string_view name) {
  std::string wanted = ToLower(name);
  std::ranges::replace(wanted, '_', '-');
  for (const NamedShape& shape : kShapes) {
    if (wanted == shape.name) {
      return GptShape(shape.name, shape.num_layers, shape.hidden_size, shape.num_attention_heads);
    }
  }
  const std::vector<std::string> names = ModelNames();
  const std::optional<std::string> near = Suggest(wanted, names);
  Fail("MOD001", fmt::format("unknown model {}", Quoted(name)), "--model_name",
       (near ? fmt::format("did you mean {}? ", *near) : "") +
           fmt::format("known: {}; or the path of a Hugging Face config.json", Join(names, ", ")));
}

ModelSpec ReadHuggingFaceConfig(const std::filesystem::path& path, Diagnostics& diagnostics) {
  const std::filesystem::path file = std::filesystem::is_directory(path) ? path / "config.json" : path;
  ModelSpec spec;
  std::string text;
  try {
    text = ReadFile(file, ErrorCode::kConfig);
  } catch (const Error& error) {
    diagnostics.Error("MOD008", {file.string(), 0, 0}, "", error.message(), "check the path");
    return spec;
  }
  const std::optional<JsonValue> json = ReadJson(text, file.string(), diagnostics);
  if (!json) return spec;
  if (json->kind != JsonValue::Kind::kObject) {
    diagnostics.Error("MOD008", {file.string(), json->line, json->column}, "",
                      fmt::format("the file holds {}, and a model description is an object", Describe(*json)),
                      "take the config.json of a Hugging Face model");
    return spec;
  }
  std::vector<Origin> origins;
  ReaderContext context{file.string(), diagnostics, origins};
  SectionReader in(context, &*json, "", SectionKind::kLoose);
  std::string type;
  in.Read("model_type", type);
  if (type != "gpt2") {
    diagnostics.Error("MOD005", in.At("model_type"), "model_type",
                      type.empty() ? "the file names no model_type" : fmt::format("{} is not supported", Quoted(type)),
                      "supported: gpt2");
    return spec;
  }
  spec.name = file.parent_path().filename().string();
  if (spec.name.empty()) spec.name = type;
  ReadSize(in, "n_layer", "num_hidden_layers", spec.num_layers);
  ReadSize(in, "n_embd", "hidden_size", spec.hidden_size);
  ReadSize(in, "n_head", "num_attention_heads", spec.num_attention_heads);
  ReadSize(in, "vocab_size", "vocab_size", spec.vocab_size);
  ReadSize(in, in.Has("n_positions") || !in.Has("n_ctx") ? "n_positions" : "n_ctx", "max_position_embeddings",
           spec.max_position_embeddings);
  spec.num_key_value_heads = spec.num_attention_heads;
  std::optional<int64_t> inner;
  in.ReadOptional("n_inner", inner, Between(1, 1e9));
  spec.intermediate_size = inner.value_or(4 * spec.hidden_size);
  in.Read("layer_norm_epsilon", spec.layer_norm_epsilon, Between(0, 1));
  in.Read("initializer_range", spec.initializer_range, Between(0, 10));
  in.Read("tie_word_embeddings", spec.tie_word_embeddings);
  ReportDropout(in);
  CheckVariants(in);
  if (!diagnostics.HasErrors() && spec.hidden_size % spec.num_attention_heads != 0) {
    diagnostics.Error("MOD004", in.At("n_embd"), "n_embd",
                      fmt::format("{} is no multiple of {} heads", spec.hidden_size, spec.num_attention_heads),
                      "take another file: this one describes no GPT-2");
  }
  PadVocabulary(spec, 1);
  return spec;
}

ModelSpec ResolveModel(const ModelFlags& flags, const std::string& init_from, int64_t tp_size,
                       Diagnostics& diagnostics) {
  CheckFlags(flags, init_from);
  if (!init_from.empty() && !flags.model_name.empty()) {
    Fail("MOD003", "--init-from and --model_name both describe the model", "--model_name", "remove --model_name");
  }
  if (init_from.empty() && flags.model_name.empty() && !flags.num_layers && !flags.hidden_size) {
    Fail("MOD002", "no model is given", "--model_name",
         fmt::format("pass --model_name with one of {}, --init-from DIR, or --num-layers, --hidden-size and "
                     "--num-attention-heads",
                     Join(ModelNames(), ", ")));
  }
  const bool is_path = flags.model_name.find('/') != std::string::npos || flags.model_name.ends_with(".json");
  ModelSpec spec = !init_from.empty()         ? ReadHuggingFaceConfig(init_from, diagnostics)
                   : is_path                  ? ReadHuggingFaceConfig(flags.model_name, diagnostics)
                   : flags.model_name.empty() ? FromShapeFlags(flags)
                                              : NamedModel(flags.model_name);
  if (diagnostics.HasErrors()) return spec;
  if (flags.vocab_size) spec.vocab_size = *flags.vocab_size;
  if (flags.max_position_embeddings) spec.max_position_embeddings = *flags.max_position_embeddings;
  if (flags.untie) spec.tie_word_embeddings = false;
  CheckShape(spec, "--hidden-size");
  PadVocabulary(spec, tp_size);
  return spec;
}

}  // namespace trireme
