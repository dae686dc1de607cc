#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "engine/base/strings.h"
#include "parsers/model_families/family.h"

namespace trireme {
namespace {

using Scaling = RopeSpec::Scaling;

struct ScalingName {
  const char* name;
  Scaling scaling;
};
constexpr auto kScalings = std::to_array<ScalingName>({{"default", Scaling::kNone},
                                                       {"linear", Scaling::kLinear},
                                                       {"dynamic", Scaling::kDynamic},
                                                       {"yarn", Scaling::kYarn},
                                                       {"longrope", Scaling::kLongRope},
                                                       {"su", Scaling::kLongRope},  // its first name
                                                       {"llama3", Scaling::kLlama3}});

void Missing(SectionReader& in, const char* key, const std::string& type) {
  in.diagnostics().Error("MOD006", in.Here(), in.Path(key), fmt::format("rope_type {} needs it", Quoted(type)),
                         fmt::format("write \"{}\"", key));
}

// `rope_type`, or `type` as older files have it.
std::optional<Scaling> ReadType(SectionReader& in, std::string& type) {
  std::string old;
  if (in.Has("rope_type")) in.Read("rope_type", type);
  if (in.Has("type")) in.Read("type", old);
  in.Know("rope_type");
  in.Know("type");
  if (type.empty()) type = old.empty() ? "default" : old;
  if (!old.empty() && old != type) {
    in.diagnostics().Error("MOD009", in.At("type"), in.Path("type"),
                           fmt::format("{} contradicts rope_type {}", Quoted(old), Quoted(type)), "keep one");
  }
  std::vector<std::string> names;
  for (const ScalingName& known : kScalings) {
    if (type == known.name) return known.scaling;
    names.emplace_back(known.name);
  }
  in.diagnostics().Error("MOD005", in.At(in.Has("rope_type") ? "rope_type" : "type"), in.Path("rope_type"),
                         fmt::format("{} is not supported", Quoted(type)), "supported: " + Join(names, ", "));
  return std::nullopt;
}

// A list of one factor for each rotated pair.
void ReadFactors(SectionReader& in, const char* key, const ModelSpec& spec, const std::string& type,
                 std::vector<double>& factors) {
  if (!in.Has(key)) return Missing(in, key, type);
  const JsonValue& list = *in.Take(key);
  for (const JsonValue& element : list.elements) {
    const bool number = element.kind == JsonValue::Kind::kInteger || element.kind == JsonValue::Kind::kNumber;
    if (number && element.number > 0) factors.push_back(element.number);
  }
  const auto pairs = static_cast<size_t>(static_cast<double>(spec.HeadSize()) * spec.rope.rotary_fraction) / 2;
  if (list.kind == JsonValue::Kind::kArray && factors.size() == list.elements.size() && factors.size() == pairs) return;
  in.diagnostics().Error("MOD005", in.At(key), in.Path(key),
                         fmt::format("{} of {} elements, {} of them numbers above 0, is not supported", Describe(list),
                                     list.elements.size(), factors.size()),
                         fmt::format("write a list of {} numbers, one for each pair of rotated channels", pairs));
}

void ReadFactor(SectionReader& in, const std::string& type, bool needed, const ModelSpec& spec, RopeSpec& rope) {
  if (in.Has("factor")) {
    in.Read("factor", rope.factor, Above(0));
  } else if (needed) {
    Missing(in, "factor", type);
  } else if (rope.original_max_position_embeddings > 0) {
    rope.factor =
        static_cast<double>(spec.max_position_embeddings) / static_cast<double>(rope.original_max_position_embeddings);
  }
}

void ReadScaling(SectionReader& in, const std::string& type, const ModelSpec& spec, RopeSpec& rope) {
  if (in.Has("original_max_position_embeddings") && rope.original_max_position_embeddings == 0) {
    in.Read("original_max_position_embeddings", rope.original_max_position_embeddings, Between(1, 1e9));
  }
  switch (rope.scaling) {
    case Scaling::kNone:
      rope.original_max_position_embeddings = 0;
      return;
    case Scaling::kLinear:
    case Scaling::kDynamic:
      rope.original_max_position_embeddings = 0;
      return ReadFactor(in, type, true, spec, rope);
    case Scaling::kYarn:
      ReadFactor(in, type, false, spec, rope);
      in.ReadOptional("attention_factor", rope.attention_factor, AtLeast(0));
      ReadNumber(in, "beta_fast", rope.beta_fast, Above(0));
      ReadNumber(in, "beta_slow", rope.beta_slow, Above(0));
      in.ReadOptional("mscale", rope.mscale, {});
      in.ReadOptional("mscale_all_dim", rope.mscale_all_dim, {});
      return ReadFlag(in, "truncate", rope.truncate);
    case Scaling::kLongRope:
      ReadFactor(in, type, false, spec, rope);
      in.ReadOptional("attention_factor", rope.attention_factor, AtLeast(0));
      ReadFactors(in, "short_factor", spec, type, rope.short_factor);
      return ReadFactors(in, "long_factor", spec, type, rope.long_factor);
    case Scaling::kLlama3:
      ReadFactor(in, type, true, spec, rope);
      for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
        if (!in.Has(key)) Missing(in, key, type);
      }
      in.Read("low_freq_factor", rope.low_freq_factor, Above(0));
      in.Read("high_freq_factor", rope.high_freq_factor, Above(0));
      if (rope.high_freq_factor == rope.low_freq_factor) {
        in.diagnostics().Error("MOD009", in.At("high_freq_factor"), in.Path("high_freq_factor"),
                               fmt::format("{} is low_freq_factor too", rope.high_freq_factor),
                               "write a larger number");
      }
      return;
  }
}

// Keys of other types may stand there; keys that no type has are errors, for they would change positions.
void TakeRest(SectionReader& in) {
  for (const char* key : {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
                          "mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor", "low_freq_factor",
                          "high_freq_factor", "finetuned"}) {
    in.Take(key);
  }
  in.RejectUnread();
}

// One of the two spellings, on top of what the file's first level says.
std::optional<RopeSpec> ReadOne(SectionReader in, const ModelSpec& spec) {
  if (!in.Exists()) return std::nullopt;
  ModelSpec read = spec;
  ReadNumber(in, "rope_theta", read.rope.theta, Above(0));
  ReadNumber(in, "partial_rotary_factor", read.rope.rotary_fraction, Between(0, 1));
  std::string type;
  if (const std::optional<Scaling> scaling = ReadType(in, type)) {
    read.rope.scaling = *scaling;
    ReadScaling(in, type, read, read.rope);
    TakeRest(in);
  }
  return read.rope;
}

void Contradict(SectionReader& in, const char* key, const std::string& other) {
  in.diagnostics().Error("MOD009", in.At(key), key, "contradicts " + other, "make them equal, or remove one");
}

// Do the file's first level and `section` name the same number?
void CompareWithSection(SectionReader& in, const char* key, SectionReader section, const char* inner) {
  if (!in.Has(key) || !section.Has(inner)) return;
  const double outer_value = in.Take(key)->number, inner_value = section.Take(inner)->number;
  if (outer_value == inner_value) return;
  in.diagnostics().Error("MOD009", in.At(key), key,
                         fmt::format("{} contradicts {} {}", outer_value, section.Path(inner), inner_value),
                         "make them equal, or remove one");
}

void CheckRotated(SectionReader& in, const RopeKeys& keys, const ModelSpec& spec) {
  if (in.diagnostics().HasErrors()) return;
  const double fraction = spec.rope.rotary_fraction;
  const auto rotated = static_cast<int64_t>(static_cast<double>(spec.HeadSize()) * fraction);
  if (keys.fraction_default == 1 && fraction != 1) {
    in.diagnostics().Error("MOD005", in.At(keys.fraction), keys.fraction,
                           fmt::format("{} is not supported in this family", fraction), "only 1 is");
  } else if (rotated < 1 || (rotated + 1) / 2 * 2 > spec.HeadSize()) {
    in.diagnostics().Error(
        "MOD005", in.At(keys.fraction), keys.fraction,
        fmt::format("{} of {} channels of a head are {}: they turn in pairs", fraction, spec.HeadSize(), rotated),
        "take a share of at least one channel, and heads of an even size");
  }
}

nlohmann::json ScalingToJson(const ModelSpec& spec) {
  const RopeSpec& rope = spec.rope;
  const auto name = std::ranges::find(kScalings, rope.scaling, &ScalingName::scaling)->name;
  nlohmann::json out = {{"rope_type", name}};
  if (rope.scaling != Scaling::kNone) out["factor"] = rope.factor;
  if (rope.original_max_position_embeddings > 0) {
    out["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  if (rope.attention_factor) out["attention_factor"] = *rope.attention_factor;
  if (rope.scaling == Scaling::kYarn) {
    out["beta_fast"] = rope.beta_fast;
    out["beta_slow"] = rope.beta_slow;
    out["truncate"] = rope.truncate;
    if (rope.mscale) out["mscale"] = *rope.mscale;
    if (rope.mscale_all_dim) out["mscale_all_dim"] = *rope.mscale_all_dim;
  }
  if (rope.scaling == Scaling::kLongRope) {
    out["short_factor"] = rope.short_factor;
    out["long_factor"] = rope.long_factor;
  }
  if (rope.scaling == Scaling::kLlama3) {
    out["low_freq_factor"] = rope.low_freq_factor;
    out["high_freq_factor"] = rope.high_freq_factor;
  }
  return out;
}

}  // namespace

void ReadRope(SectionReader& in, const RopeKeys& keys, ModelSpec& spec) {
  if (spec.num_attention_heads < 1) return;  // reported
  ReadNumber(in, keys.theta, spec.rope.theta, Above(0));
  spec.rope.rotary_fraction = keys.fraction_default;
  ReadNumber(in, keys.fraction, spec.rope.rotary_fraction, Between(0, 1));
  if (in.Has("original_max_position_embeddings")) {  // Phi-3's place for it
    in.Read("original_max_position_embeddings", spec.rope.original_max_position_embeddings, Between(1, 1e9));
  }
  // GPT-NeoX files of transformers 4 repeat both under the common names.
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
    const double own = std::string_view(key) == "rope_theta" ? spec.rope.theta : spec.rope.rotary_fraction;
    double repeated = own;
    ReadNumber(in, key, repeated, Above(0));
    if (repeated != own) Contradict(in, key, std::string_view(key) == "rope_theta" ? keys.theta : keys.fraction);
  }
  SectionReader scaling = in.Section("rope_scaling", SectionKind::kArguments, /*null_is_absent=*/true);
  SectionReader parameters = in.Section("rope_parameters", SectionKind::kArguments, /*null_is_absent=*/true);
  for (const SectionReader& section : {scaling, parameters}) {
    CompareWithSection(in, keys.theta, section, "rope_theta");
    CompareWithSection(in, keys.fraction, section, "partial_rotary_factor");
  }
  const std::optional<RopeSpec> old_way = ReadOne(scaling, spec), new_way = ReadOne(parameters, spec);
  if (!old_way && !new_way) spec.rope.original_max_position_embeddings = 0;
  if (old_way && new_way && !in.diagnostics().HasErrors()) {
    RopeSpec old_spec = *old_way;  // which has no place for these
    if (!scaling.Has("rope_theta")) old_spec.theta = new_way->theta;
    if (!scaling.Has("partial_rotary_factor")) old_spec.rotary_fraction = new_way->rotary_fraction;
    if (old_spec != *new_way) Contradict(in, "rope_scaling", "rope_parameters");
  }
  if (old_way) spec.rope = *old_way;
  if (new_way) spec.rope = *new_way;
  CheckRotated(in, keys, spec);
}

void WriteRope(const ModelSpec& spec, const RopeKeys& keys, nlohmann::json& out) {
  out[keys.theta] = spec.rope.theta;
  const bool partial = keys.fraction_default != 1;
  if (partial) out[keys.fraction] = spec.rope.rotary_fraction;
  nlohmann::json parameters = ScalingToJson(spec);
  out["rope_scaling"] = nullptr;
  if (spec.rope.scaling != Scaling::kNone) {
    out["rope_scaling"] = parameters;
    out["rope_scaling"]["type"] = parameters["rope_type"];
  }
  parameters["rope_theta"] = spec.rope.theta;
  if (partial) parameters["partial_rotary_factor"] = spec.rope.rotary_fraction;
  out["rope_parameters"] = parameters;
}

}  // namespace trireme
