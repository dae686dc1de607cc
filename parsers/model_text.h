// A model's description as JSON in Hugging Face's keys: config.json, and the text that native checkpoints carry, which
// is one too.
//   ModelSpec m = ModelFromJson(ModelToJson(model, DType::kBFloat16), "checkpoint: model description");
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/dtype.h"
#include "parsers/diagnostics.h"
#include "parsers/model_spec.h"

namespace trireme {

// A config.json for weights of type `dtype`. Rotary positions and the type are written in the spelling of transformers
// 4 and of 5, so that either reads them.
std::string HuggingFaceConfig(const ModelSpec& model, DType dtype);

// The text of a config.json, or of ModelToJson; problems, with their place in `where`, go to `diagnostics`.
ModelSpec ReadModelText(std::string_view text, const std::string& where, Diagnostics& diagnostics);

// One line: config.json's keys with the model's name and padded vocabulary.
std::string ModelToJson(const ModelSpec& model, DType dtype);
// Throws Error{kCheckpoint, MOD011} with every problem.
ModelSpec ModelFromJson(std::string_view text, const std::string& where);
// The type of the weights that a config.json or a text of ModelToJson names (dtype or torch_dtype), if it does.
std::optional<DType> WeightsDType(std::string_view text);

// Config.json's words, for messages: "qwen2", "gelu_new", and rotary positions as a JSON object ("none": learned).
std::string_view ModelType(Family family);
std::string_view NameOf(Activation activation);
std::string RopeText(const ModelSpec& model);

}  // namespace trireme
