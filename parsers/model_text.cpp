#include "parsers/model_text.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "parsers/json_tree.h"
#include "parsers/model_families/family.h"

namespace trireme {
namespace {

std::string_view TorchName(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "float64";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    default:
      return "float32";
  }
}

nlohmann::json ToJson(const ModelSpec& model, DType dtype) {
  const ModelFamily& family = FamilyOf(model.family);
  nlohmann::json out = {{"model_type", family.model_type},
                        {"architectures", {family.architecture}},
                        {"vocab_size", model.vocab_size},
                        {"initializer_range", model.initializer_range},
                        {"tie_word_embeddings", model.tie_word_embeddings},
                        {"use_cache", true}};
  out["dtype"] = out["torch_dtype"] = TorchName(dtype);
  family.write(model, out);
  WriteTokenIds(model, out);
  return out;
}

}  // namespace

std::string HuggingFaceConfig(const ModelSpec& model, DType dtype) {
  return ToJson(model, dtype).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

ModelSpec ReadModelText(std::string_view text, const std::string& where, Diagnostics& diagnostics) {
  ModelSpec spec;
  const std::optional<JsonValue> json = ReadJson(text, where, diagnostics);
  if (!json) return spec;
  if (json->kind != JsonValue::Kind::kObject) {
    diagnostics.Error("MOD008", {where, json->line, json->column}, "",
                      fmt::format("the file holds {}, and a model description is an object", Describe(*json)),
                      "take the config.json of a Hugging Face model");
    return spec;
  }
  std::vector<Origin> origins;
  ReaderContext context{where, diagnostics, origins};
  SectionReader in(context, &*json, "", SectionKind::kLoose);
  std::string type;
  in.Read("model_type", type);
  const ModelFamily* family = FindFamily(type);
  if (family == nullptr) {
    diagnostics.Error("MOD005", in.At("model_type"), "model_type",
                      type.empty() ? "the file names no model_type" : fmt::format("{} is not supported", Quoted(type)),
                      "supported: " + Join(ModelTypes(), ", "));
    return spec;
  }
  spec.family = family->family;
  if (in.Has("name")) in.Read("name", spec.name);
  family->read(in, spec);
  CheckCommonKeys(in);
  WarnOfUnread(in);
  PadVocabulary(spec, 1);
  if (in.Has("own_modules")) in.Read("own_modules", spec.own_modules);
  if (in.Has("padded_vocab_size")) in.Read("padded_vocab_size", spec.padded_vocab_size, Between(1, 2e9));
  return spec;
}

std::string ModelToJson(const ModelSpec& model, DType dtype) {
  nlohmann::json out = ToJson(model, dtype);
  out["name"] = model.name;
  out["padded_vocab_size"] = model.padded_vocab_size;
  if (model.own_modules) out["own_modules"] = true;
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ModelSpec ModelFromJson(std::string_view text, const std::string& where) {
  Diagnostics diagnostics;
  const ModelSpec spec = ReadModelText(text, where, diagnostics);
  if (diagnostics.HasErrors()) {
    throw Error(ErrorCode::kCheckpoint, "MOD011",
                "the description of the model cannot be read\n" + diagnostics.Render(Severity::kError), where,
                "the checkpoint is damaged or of a newer version: run `trireme inspect --verify` on it");
  }
  return spec;
}

std::optional<DType> WeightsDType(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto it = json.find(key);
    if (it != json.end() && it->is_string()) return ParseDType(it->get<std::string>());
  }
  return std::nullopt;
}

std::string_view ModelType(Family family) { return FamilyOf(family).model_type; }

std::string RopeText(const ModelSpec& model) {
  if (!model.rotary()) return "none";
  nlohmann::json out;
  WriteRope(model, {"rope_theta", "partial_rotary_factor", /*fraction_default=*/0}, out);
  return out["rope_parameters"].dump();
}

}  // namespace trireme
