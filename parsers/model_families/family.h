// One model family each: its published models, and its config.json in Hugging Face's keys, read and written.
//   const ModelFamily* family = FindFamily("qwen2");  family->read(in, spec);
// To add one: a file beside this, a row in family.cpp, and its layers (engine/plan/families, engine/model).
#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parsers/model_spec.h"
#include "parsers/section_reader.h"

namespace trireme {

struct ModelFamily {
  std::string_view model_type, architecture;  // as config.json names them
  Family family;
  // Fills `spec` from the keys of the file; what the layers cannot do is an error in the reader's diagnostics.
  void (*read)(SectionReader& in, ModelSpec& spec);
  void (*write)(const ModelSpec& spec, nlohmann::json& out);
};
const ModelFamily* FindFamily(std::string_view model_type);  // null: not supported
const ModelFamily& FamilyOf(Family family);
std::vector<std::string> ModelTypes();

// The published models, name and shape; name in lower case.
std::span<const ModelSpec> Gpt2Models();     // gpt2.cpp: GPT-3's shapes
std::span<const ModelSpec> LlamaModels();    // llama.cpp
std::span<const ModelSpec> Qwen2Models();    // qwen2.cpp
std::span<const ModelSpec> GptNeoXModels();  // gpt_neox.cpp

extern const ModelFamily kGpt2Family, kLlamaFamily, kMistralFamily, kQwen2Family, kGptNeoXFamily;

// ---- What the families' files share (reading.cpp). Absent and null leave the default that is there.

// A size that the file must have, under the first of `keys` that it has.
void ReadSize(SectionReader& in, std::initializer_list<const char*> keys, int64_t& value);
void ReadNumber(SectionReader& in, const char* key, double& value, Range range);
void ReadFlag(SectionReader& in, const char* key, bool& value);
// A flag that the layers know one value of.
void RequireFlag(SectionReader& in, const char* key, bool only);
// The text under `key` as one of `known`, else an error that lists them.
struct ActivationName {
  const char* name;
  Activation activation;
};
void ReadActivation(SectionReader& in, const char* key, std::span<const ActivationName> known, Activation& value);
inline constexpr ActivationName kGelus[] = {{"gelu_new", Activation::kGeluTanh},
                                            {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                            {"gelu_fast", Activation::kGeluTanh},
                                            {"gelu", Activation::kGelu}};
inline constexpr ActivationName kSilus[] = {{"silu", Activation::kSilu}, {"swish", Activation::kSilu}};
std::string_view NameOf(Activation activation);
// A rate above 0 is reported: dropout comes from a flag alone.
void ReportDropout(SectionReader& in, std::initializer_list<const char*> keys);
// Layers, widths, vocabulary and positions under the names of every family but GPT-2; the vocabulary is written by
// model_text.cpp for all.
void ReadSizes(SectionReader& in, ModelSpec& spec);
void WriteSizes(const ModelSpec& spec, nlohmann::json& out);
// Heads, key and value heads, head size. `absent_kv_heads`: what the family has where the key is absent; 0: as heads.
void ReadHeads(SectionReader& in, int64_t absent_kv_heads, ModelSpec& spec);
// head size and hidden size, heads and key heads fit each other.
void CheckHeads(SectionReader& in, const char* hidden_key, const ModelSpec& spec);
// bos, eos and pad; `bos`, `eos`: the family's own where the keys are absent (not where they are null). Ids past the
// vocabulary are none.
void ReadTokenIds(SectionReader& in, std::optional<int64_t> bos, std::optional<int64_t> eos, ModelSpec& spec);
// What every config.json may say: weights that are no plain numbers and attention of another kind are refused, keys
// without a meaning for arithmetic are known, and others are warned of.
void CheckCommonKeys(SectionReader& in);
void WarnOfUnread(SectionReader& in);
void WriteTokenIds(const ModelSpec& spec, nlohmann::json& out);

// ---- Rotary positions (rope.cpp), in the old spelling (theta and rope_scaling, whose type is `rope_type` or `type`)
// and that of transformers 5 (rope_parameters); both are read, and both are written.
struct RopeKeys {
  const char* theta;     // "rope_theta", "rotary_emb_base"
  const char* fraction;  // "partial_rotary_factor", "rotary_pct"
  double fraction_default = 1;
};
// After the sizes were read.
void ReadRope(SectionReader& in, const RopeKeys& keys, ModelSpec& spec);
void WriteRope(const ModelSpec& spec, const RopeKeys& keys, nlohmann::json& out);

}  // namespace trireme
