#include "parsers/schema/schema.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "engine/base/strings.h"
#include "parsers/sections/sections.h"

namespace trireme {
namespace {

// Texts that together make the parser look at every key. A test asserts that no key of the sections' sources is missed.
struct Probe {
  std::string_view section;  // whose params the probe is about: "optimizer", "scheduler" or ""
  std::string_view variant;  // its type
  std::string text;
};

std::vector<Probe> Probes() {
  std::vector<Probe> probes = {{"", "", "{}"}};
  probes.push_back({"", "", R"({"bfloat16": {}, "tensor_parallel": {"tensor_parallel": {}}})"});
  probes.push_back({"", "", R"({"zero_optimization": {"stage": 3, "offload_optimizer": {}, "offload_param": {}}})"});
  probes.push_back({"", "", R"({"zero_optimization": true, "sparse_attention": {}})"});
  const auto add = [&](std::string_view section, std::string_view type) {
    probes.push_back({section, type, fmt::format(R"({{"{}": {{"type": "{}", "params": {{}}}}}})", section, type)});
  };
  for (const OptimizerType type : {OptimizerType::kAdam, OptimizerType::kAdamW, OptimizerType::kSgd,
                                   OptimizerType::kAdagrad, OptimizerType::kLion, OptimizerType::kLamb}) {
    add("optimizer", Name(type));
  }
  for (const SchedulerType type :
       {SchedulerType::kWarmupLR, SchedulerType::kWarmupDecayLR, SchedulerType::kWarmupCosineLR,
        SchedulerType::kLRRangeTest, SchedulerType::kOneCycle}) {
    add("scheduler", Name(type));
  }
  return probes;
}

bool HasVariants(std::string_view path) {
  return path.starts_with("optimizer.params.") || path.starts_with("scheduler.params.");
}

// A key of optimizer or scheduler parameters belongs to the probes of its section alone.
bool Concerns(const Probe& probe, std::string_view path) {
  return !HasVariants(path) || path.substr(0, path.find('.')) == probe.section;
}

void AddOnce(std::vector<std::string>& to, const std::string& text) {
  if (!text.empty() && std::ranges::find(to, text) == to.end()) to.push_back(text);
}

using Keys = std::map<std::string, SchemaKey>;

void Merge(const KeyRecord& record, const Probe& probe, Keys& keys) {
  if (!Concerns(probe, record.path)) return;
  SchemaKey& key = keys[record.path];
  key.path = record.path;
  if (record.type != KeyRecord::Type::kAny && key.type == KeyRecord::Type::kAny) {
    key.type = record.type;
    key.range = record.range;
  }
  if (record.type == KeyRecord::Type::kSection || key.type != KeyRecord::Type::kSection) key.kind = record.kind;
  if (record.known) key.known = record.known;
  if (HasVariants(record.path)) AddOnce(key.variants, std::string(probe.variant));
}

// "1" where nothing else is to be said; "false (true at stage 3 only)"; "optimizer.params.lr"; "derived: ...".
std::string DefaultText(const Origin& origin) {
  static constexpr std::string_view kRule = "default: ";
  if (!origin.source.starts_with("default")) return origin.source;
  if (!origin.source.starts_with(kRule)) return origin.value;
  const std::string rule = origin.source.substr(kRule.size());
  return rule.starts_with("optimizer.") ? rule : fmt::format("{} ({})", origin.value, rule);
}

// The first probe that shows a default decides, but where it depends on the type.
void AddDefault(SchemaKey& key, const std::string& value, std::string_view variant) {
  if (!HasVariants(key.path)) {
    if (key.defaults.empty()) key.defaults.push_back({value, {}});
    return;
  }
  const auto known = std::ranges::find(key.defaults, value, &SchemaKey::Default::value);
  AddOnce((known != key.defaults.end() ? *known : key.defaults.emplace_back(value)).variants, std::string(variant));
}

// The value and source that a probe leaves are the defaults, but where the probe itself wrote the key.
void AddOutcome(const ParseResult& result, const std::string& name, const Probe& probe, Keys& keys) {
  for (const Origin& origin : result.config.origins) {
    const auto key = keys.find(origin.key);
    if (key == keys.end() || origin.source.starts_with(name + ":") || !Concerns(probe, origin.key)) continue;
    AddDefault(key->second, DefaultText(origin), probe.variant);
  }
  for (const Problem& problem : result.diagnostics.problems()) {
    const auto key = keys.find(problem.key);
    if (key != keys.end() && problem.severity == Severity::kError) key->second.required = true;
  }
}

// Which keys take the flags: whoever names a flag as its source when all are given.
void AddFlags(Keys& keys) {
  TrainFlags flags;
  flags.global_batch_size = flags.micro_batch_size = flags.gradient_accumulation_steps = 1;
  flags.lr = flags.weight_decay = flags.adam_beta1 = flags.adam_beta2 = flags.adam_eps = flags.clip_grad = 0.5;
  flags.lr_warmup_iters = flags.train_iters = flags.tensor_model_parallel_size = flags.pipeline_model_parallel_size = 1;
  flags.seed = 1;
  flags.sequence_parallel = flags.bf16 = flags.fp16 = flags.distribute_saved_activations = true;
  flags.recompute_granularity = "full";
  for (const Probe& probe : Probes()) {
    const ParseResult result = ParseRecording(probe.text, "probe", flags, 1, 0, nullptr);
    for (const Origin& origin : result.config.origins) {
      const auto key = keys.find(origin.key);
      if (key == keys.end() || !origin.source.starts_with("--")) continue;
      for (const std::string& flag : Split(origin.source, ',')) AddOnce(key->second.flags, std::string(Trim(flag)));
    }
  }
}

// The alias that stands for the path, or for a section around it.
const KeyAlias* AliasAround(std::string_view path) {
  for (size_t end = path.size(); end != std::string_view::npos; end = path.rfind('.', end - 1)) {
    if (const KeyAlias* alias = FindAlias(path.substr(0, end))) return alias;
  }
  return nullptr;
}

// By the table of aliases, as often as it applies; and "x" beside "stage3_x".
void ResolveAlias(const Keys& keys, SchemaKey& key) {
  std::string path = key.path;
  while (const KeyAlias* alias = AliasAround(path)) {
    path = std::string(alias->key) + path.substr(alias->name.size());
    key.alias_what = alias->what;
    key.alias_of = path;
  }
  if (!key.alias_of.empty()) return;
  static constexpr std::string_view kZero = "zero_optimization.";
  if (!key.path.starts_with(kZero)) return;
  const std::string long_name = fmt::format("{}stage3_{}", kZero, key.path.substr(kZero.size()));
  if (!keys.contains(long_name)) return;
  key.alias_of = long_name;
  key.alias_what = "short name";
}

// Members of a section that is treated as one have no word of their own: the section speaks for them.
void InheritTreatment(Keys& keys) {
  for (auto& [path, key] : keys) {  // sorted: a section comes before its members
    const size_t dot = path.rfind('.');
    if (dot == std::string::npos || !key.known || !key.known->why.empty()) continue;
    const auto section = keys.find(path.substr(0, dot));
    if (section == keys.end() || !section->second.known) continue;
    key.known->treatment = section->second.known->treatment;
    key.known->why = section->second.known->why;
  }
}

// zero_optimization before its members, and these before zero_other: '.' sorts before every letter.
bool ByPath(const SchemaKey& a, const SchemaKey& b) {
  return std::ranges::lexicographical_compare(a.path, b.path, [](char x, char y) {
    return (x == '.' ? 0 : static_cast<unsigned char>(x)) < (y == '.' ? 0 : static_cast<unsigned char>(y));
  });
}

}  // namespace

KeyClass SchemaKey::Class() const {
  if (known) return known->treatment == kRefused ? KeyClass::kRefuse : KeyClass::kNote;
  return doc == nullptr ? KeyClass::kAct : doc->key_class;
}

Schema::Schema() {
  Keys keys;
  for (const Probe& probe : Probes()) {
    std::vector<KeyRecord> records;
    const ParseResult result = ParseRecording(probe.text, "probe", {}, 1, 0, &records);
    for (const KeyRecord& record : records) Merge(record, probe, keys);
    AddOutcome(result, "probe", probe, keys);
  }
  AddFlags(keys);
  InheritTreatment(keys);
  for (auto& [path, key] : keys) ResolveAlias(keys, key);
  for (const KeyDoc* doc : KeyDocs()) {
    const auto key = keys.find(std::string(doc->key));
    if (key != keys.end()) key->second.doc = doc;
  }
  for (auto& [path, key] : keys) keys_.push_back(std::move(key));
  std::ranges::sort(keys_, ByPath);
}

const SchemaKey* Schema::Find(std::string_view path) const {
  const auto key = std::ranges::find(keys_, path, &SchemaKey::path);
  return key == keys_.end() ? nullptr : &*key;
}

std::vector<const SchemaKey*> Schema::EndingIn(std::string_view name) const {
  std::vector<const SchemaKey*> found;
  const std::string suffix = "." + std::string(name);
  for (const SchemaKey& key : keys_) {
    if (key.path != name && !key.path.ends_with(suffix)) continue;
    const SchemaKey* own = key.alias_of.empty() ? &key : Find(key.alias_of);
    if (own != nullptr && std::ranges::find(found, own) == found.end()) found.push_back(own);
  }
  return found;
}

std::vector<const SchemaKey*> Schema::MembersOf(std::string_view section) const {
  std::vector<const SchemaKey*> found;
  const std::string prefix = section.empty() ? "" : std::string(section) + ".";
  for (const SchemaKey& key : keys_) {
    const bool direct = key.path.starts_with(prefix) && key.path.find('.', prefix.size()) == std::string::npos;
    if (direct && key.alias_of.empty()) found.push_back(&key);
  }
  return found;
}

std::vector<const SchemaKey*> Schema::AliasesOf(std::string_view path) const {
  std::vector<const SchemaKey*> found;
  for (const SchemaKey& key : keys_) {
    if (key.alias_of == path) found.push_back(&key);
  }
  return found;
}

std::string ProbeText(std::string_view path, std::string_view value, std::string_view variant) {
  const std::vector<std::string> names = Split(path, '.');
  std::string text, close;
  for (size_t i = 0; i < names.size(); ++i) {
    text += "{";
    close += "}";
    // One of the batch numbers must be known.
    if (i == 0)
      text +=
          fmt::format("\"train_{}\": 1, ", names[0] == "train_batch_size" ? "micro_batch_size_per_gpu" : "batch_size");
    const bool of_type = i == 1 && names[1] != "type" && (names[0] == "optimizer" || names[0] == "scheduler");
    if (of_type) text += fmt::format(R"("type": "{}", )", variant.empty() ? "" : variant);
    if (i == 1 && names[0] == "zero_optimization" && names[1] != "stage") text += R"("stage": 3, )";
    text += fmt::format("\"{}\": ", names[i]);
  }
  return text + std::string(value) + close;
}

std::string AutoRuleOf(const SchemaKey& key) {
  if (key.IsSection()) return "";
  const std::string text = ProbeText(key.path, "\"auto\"", key.variants.empty() ? "" : key.variants.front());
  const ParseResult result = ParseRecording(text, "probe", {}, 1, 1024, nullptr);
  for (const Problem& problem : result.diagnostics.problems()) {
    if (problem.key != key.path || problem.severity != Severity::kError) continue;
    return key.flags.empty() ? "an error" : fmt::format("{}; an error without it", Join(key.flags, ", "));
  }
  if (key.known) return "ignored";
  std::string rule = "the default";
  for (const Origin& origin : result.config.origins) {
    static constexpr std::string_view kByModel = "\"auto\": ";
    if (origin.key != key.path) continue;
    if (origin.source.starts_with(kByModel)) rule = origin.source.substr(kByModel.size());
    if (origin.source.starts_with("optimizer.")) rule = origin.source;
    if (origin.source.starts_with("derived")) rule = "derived";
  }
  return key.flags.empty() ? rule : fmt::format("{}; {} without it", Join(key.flags, ", "), rule);
}

}  // namespace trireme
