// Model descriptions: by name, by a Hugging Face config.json, or by flags.
//   ModelSpec m = ResolveModel(options.model, options.init_from, config.tensor_parallel.tp_size, notes);
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "parsers/diagnostics.h"
#include "parsers/model_spec.h"

namespace trireme {

struct ModelFlags;  // parsers/cli.h

// The published models of all families: gpt-125m, llama2-7b, qwen2.5-1.5b, pythia-1.4b ... Throws Error{kConfig,
// MOD001} with the nearest name and the list.
ModelSpec NamedModel(std::string_view name);
std::vector<std::string> ModelNames();

// A Hugging Face config.json of a supported model_type, or a folder that holds one. Problems and what was not taken
// (dropout) go to `diagnostics`. parsers/model_text.h writes one.
ModelSpec ReadHuggingFaceConfig(const std::filesystem::path& path, Diagnostics& diagnostics);

// The model that the flags mean: --init-from's config.json, else --model_name (a name or a path), else the shape flags.
// Shape flags beside a named model replace its vocabulary and positions only. Throws Error{kUsage, MOD00x}; problems of
// a config.json go to `diagnostics`. The vocabulary is padded for `tp_size`.
ModelSpec ResolveModel(const ModelFlags& flags, const std::string& init_from, int64_t tp_size,
                       Diagnostics& diagnostics);

}  // namespace trireme
