#include "parsers/model_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/strings.h"
#include "parsers/cli.h"
#include "parsers/json_tree.h"
#include "parsers/model_families/family.h"
#include "parsers/model_text.h"

namespace trireme {
namespace {

// Shape flags describe a GPT-2 with its vocabulary and GPT-3's positions.
ModelSpec GptShape(int64_t num_layers, int64_t hidden_size, int64_t heads) {
  ModelSpec spec = Gpt2Models().front();
  spec.name = "gpt";
  spec.num_layers = num_layers;
  spec.hidden_size = hidden_size;
  spec.num_attention_heads = spec.num_key_value_heads = heads;
  spec.intermediate_size = 4 * hidden_size;
  return spec;
}

std::vector<ModelSpec> PublishedModels() {
  std::vector<ModelSpec> all;
  for (const std::span<const ModelSpec> family : {Gpt2Models(), LlamaModels(), Qwen2Models(), GptNeoXModels()}) {
    all.insert(all.end(), family.begin(), family.end());
  }
  return all;
}

[[noreturn]] void Fail(const char* id, const std::string& what, const std::string& where, const std::string& fix) {
  throw Error(ErrorCode::kConfig, id, what, where, fix);
}

// Ids of the published vocabulary that a smaller one lacks are none.
void SetVocabulary(ModelSpec& spec, int64_t vocab_size) {
  spec.vocab_size = vocab_size;
  for (std::optional<int64_t>* id : {&spec.bos_token_id, &spec.pad_token_id}) {
    if (*id && **id >= vocab_size) id->reset();
  }
  std::erase_if(spec.eos_token_ids, [&](int64_t id) { return id >= vocab_size; });
}

constexpr int64_t kMostLayers = 30'000;

void CheckShape(const ModelSpec& spec, const std::string& where) {
  if (spec.num_layers > kMostLayers) {
    const bool flag = where.starts_with("--");
    Fail("MOD003", fmt::format("{} layers are out of range: 1 to {}", spec.num_layers, kMostLayers),
         flag ? "--num-layers" : where, fmt::format("{} a number in range", flag ? "pass" : "write"));
  }
  if (spec.head_size == 0 && spec.hidden_size % spec.num_attention_heads != 0) {
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
  return GptShape(need(flags.num_layers, "--num-layers"), need(flags.hidden_size, "--hidden-size"),
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
    const int64_t most = i == 0 ? kMostLayers : 1'000'000'000;
    if (value && (*value < 1 || *value > most)) {
      Fail("MOD003", fmt::format("{} is out of range: it must be 1 to {}", *value, most), flag, "pass a size in range");
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
  for (const ModelSpec& model : PublishedModels()) names.push_back(model.name);
  return names;
}

ModelSpec NamedModel(std::string_view name) {
  std::string wanted = ToLower(name);
  std::ranges::replace(wanted, '_', '-');
  for (ModelSpec& model : PublishedModels()) {
    if (wanted != model.name) continue;
    PadVocabulary(model, 1);
    return model;
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
  try {
    spec = ReadModelText(ReadFile(file, ErrorCode::kConfig), file.string(), diagnostics);
  } catch (const Error& error) {
    diagnostics.Error("MOD008", {file.string(), 0, 0}, "", error.message(), "check the path");
  }
  if (spec.name.empty()) spec.name = std::filesystem::absolute(file).parent_path().filename().string();
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
  if (flags.vocab_size) SetVocabulary(spec, *flags.vocab_size);
  if (flags.max_position_embeddings) spec.max_position_embeddings = *flags.max_position_embeddings;
  if (flags.untie) spec.tie_word_embeddings = false;
  CheckShape(spec, "--hidden-size");
  PadVocabulary(spec, tp_size);
  return spec;
}

}  // namespace trireme
