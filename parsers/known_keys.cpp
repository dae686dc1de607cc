// The half of SectionReader that deals with keys nobody acts on: what is known is checked, named or refused, what is
// unknown is compared with the known names.
#include <fmt/core.h>

#include <algorithm>

#include "engine/base/strings.h"
#include "parsers/section_reader.h"
#include "parsers/text_values.h"

namespace trireme {
namespace {

using Kind = JsonValue::Kind;

// The members named "enabled" below `value`: their number, and the paths of those that are true.
void FindEnabled(const JsonValue& value, const std::string& path, int& total, std::vector<std::string>& on) {
  for (const JsonMember& member : value.members) {
    const std::string here = path.empty() ? member.key : path + "." + member.key;
    if (member.key == "enabled") {
      ++total;
      const JsonValue& v = member.value;
      const bool text_on = v.kind == Kind::kText && BooleanFromText(v.text).value_or(!v.IsAuto());
      if ((v.kind == Kind::kBool && v.boolean) || v.number != 0 || text_on) on.push_back(here);
    } else {
      FindEnabled(member.value, here, total, on);
    }
  }
}

// Does the value switch a feature on? Objects go by "enabled" at any depth, where there is one: DeepSpeed looks at
// inner switches directly and does not need the outer one.
bool IsOn(const JsonValue& value) {
  switch (value.kind) {
    case Kind::kNull:
      return false;
    case Kind::kBool:
      return value.boolean;
    case Kind::kInteger:
    case Kind::kNumber:
      return value.number != 0;
    case Kind::kText:
      return BooleanFromText(value.text).value_or(!value.text.empty() && value.text != "auto" && value.text != "none");
    case Kind::kArray:
      return !value.elements.empty();
    case Kind::kObject: {
      int total = 0;
      std::vector<std::string> on;
      FindEnabled(value, "", total, on);
      return total > 0 ? !on.empty() : !value.members.empty();
    }
  }
  return true;
}

bool IsDefault(const JsonValue& value, const KnownKey& known);

// A section whose table has the switch goes by it alone; one without goes by what its members say.
bool IsOn(const JsonValue& value, const KnownKey& known) {
  if (value.kind != Kind::kObject || known.members.empty()) return IsOn(value);
  if (known.present_is_on) return true;
  const auto it = std::ranges::find_if(
      known.members, [](const KnownKey& member) { return member.key == "enabled" && member.why.empty(); });
  if (it != known.members.end()) {
    const JsonMember* enabled = value.Find("enabled");
    return enabled != nullptr ? IsOn(enabled->value) : it->default_value == "true";
  }
  return std::ranges::any_of(value.members, [&](const JsonMember& member) {
    const auto entry = std::ranges::find(known.members, member.key, &KnownKey::key);
    return entry == known.members.end() || !IsDefault(member.value, *entry);
  });
}

bool IsDefault(const JsonValue& value, const KnownKey& known) {
  const std::string_view default_value = known.default_value;
  if (value.kind == Kind::kNull || value.IsAuto()) return true;
  if (value.kind == Kind::kObject) return !IsOn(value, known);
  if (value.kind == Kind::kBool) {
    return (value.boolean ? "true" : "false") == default_value || (default_value.empty() && !value.boolean);
  }
  if (value.kind == Kind::kInteger || value.kind == Kind::kNumber) return NumberFromText(default_value) == value.number;
  if (value.kind == Kind::kArray) return value.elements.empty();
  return value.kind == Kind::kText && ToLower(value.text) == ToLower(default_value);
}

// The words of a refusal: of a section with the switches that are on.
std::string WhatIsOn(const JsonValue& value, const std::string& path) {
  if (value.kind != Kind::kObject) {
    return fmt::format("DeepSpeed knows this key, but {} is not supported here", Describe(value));
  }
  int total = 0;
  std::vector<std::string> on;
  FindEnabled(value, path, total, on);
  return fmt::format("DeepSpeed knows this section; it is on{}, and not supported here",
                     on.empty() ? "" : " (" + Join(on, ", ") + ")");
}

enum class KnownType : uint8_t { kAny, kBool, kInteger, kNumber, kText, kObject };

KnownType TypeOf(const KnownKey& known) {
  if (!known.members.empty()) return KnownType::kObject;
  if (!known.choices.empty()) return KnownType::kText;
  const std::string_view text = known.default_value;
  if (text.empty()) return KnownType::kAny;
  if (text == "true" || text == "false") return KnownType::kBool;
  if (!NumberFromText(text)) return KnownType::kText;
  return text.find('.') == std::string_view::npos ? KnownType::kInteger : KnownType::kNumber;
}

bool IsChoice(std::string_view text, std::string_view choices) {
  const std::vector<std::string> all = Split(std::string(choices), '|');
  return std::ranges::find(all, ToLower(text)) != all.end();
}

}  // namespace

bool SectionReader::IsValidText(const JsonMember& member, const KnownKey& known) {
  if (member.value.kind != Kind::kText) {
    TypeError(member.key, member.value, "text", "write it in quotes");
    return false;
  }
  if (known.choices.empty() || IsChoice(member.value.text, known.choices)) return true;
  diagnostics().Error("CFG012", At(member.key), Path(member.key),
                      fmt::format("{} is none of its values", Quoted(member.value.text)),
                      fmt::format("write one of {}", Join(Split(std::string(known.choices), '|'), ", ")));
  return false;
}

bool SectionReader::IsValid(const JsonMember& member, const KnownKey& known) {
  const KnownType type = TypeOf(known);
  const JsonValue& value = member.value;
  if (type == KnownType::kAny) return true;
  if (value.kind == Kind::kNull) {
    if (known.nullable || (type != KnownType::kObject && kind_ != SectionKind::kChecked)) return true;
    TypeError(member.key, value, type == KnownType::kObject ? "object" : "value", "remove the key");
    return false;
  }
  if (value.IsAuto() && type != KnownType::kObject && !IsChoice("auto", known.choices)) {
    return Present(member.key) != nullptr;
  }
  switch (type) {
    case KnownType::kAny:
      return true;
    case KnownType::kBool:
      return Boolean(member.key, value).has_value();
    case KnownType::kInteger: {
      const std::optional<int64_t> number = Integer(member.key, value);
      const bool bounded = !known.default_value.starts_with('-');
      return number && (!bounded || InRange(member.key, static_cast<double>(*number), AtLeast(0)));
    }
    case KnownType::kNumber:
      return Number(member.key, value).has_value();
    case KnownType::kText:
      return IsValidText(member, known);
    case KnownType::kObject:
      if (value.kind == Kind::kObject) return true;
      TypeError(member.key, value, "object", "write { ... } with its keys, or remove it");
      return false;
  }
  return true;
}

void SectionReader::ReportKnown(const JsonMember& member, const KnownKey& known,
                                std::vector<WithoutEffect>& without_effect) {
  if (!IsValid(member, known) || IsDefault(member.value, known)) return;
  if (known.treatment == kNoEffect) {
    if (!known.why.empty()) without_effect.push_back({&known, &member});
  } else if (known.default_value == "true" || IsOn(member.value, known)) {
    diagnostics().Error("CFG009", At(member.key), Path(member.key), WhatIsOn(member.value, Path(member.key)),
                        std::string(known.why));
  }
}

void SectionReader::CheckPresence(const KnownKey& known) {
  const std::string key(known.key), alias(known.short_name);
  if (known.required && !Has(key)) {
    diagnostics().Error("CFG040", Here(), Path(key), "absent, and DeepSpeed stops without it",
                        fmt::format("write it, or remove {}", path_));
  }
  if (!alias.empty() && Has(key) && Has(alias)) {
    diagnostics().Error("CFG011", At(alias), Path(alias), fmt::format("this and {} are one key under two names", key),
                        fmt::format("keep {} only", key));
  }
}

// What DeepSpeed checks, it checks whether on or off; of loose sections it looks at those that are on.
void SectionReader::CheckMembers(const KnownKey& section) {
  if (section.members.empty()) return;
  const JsonMember* member = Member(std::string(section.key));
  const JsonValue* object = member != nullptr && member->value.kind == Kind::kObject ? &member->value : nullptr;
  const bool on = object != nullptr && IsOn(*object, section);
  const bool refused = on && section.treatment == kRefused;  // one error says it all
  const bool looked_at = section.kind == SectionKind::kChecked || on || section.why.empty();
  const std::string path = Path(std::string(section.key));
  SectionReader(*context_, looked_at && !refused ? object : nullptr, path, section.kind).RejectUnread(section.members);
  if (object == nullptr || looked_at) return;
  SectionReader off(*context_, object, path, section.kind);
  for (const KnownKey& entry : section.members) off.CheckPresence(entry);
}

void SectionReader::RejectUnread(std::span<const KnownKey> known) {
  for (const KnownKey& entry : known) {
    NoteKnown(entry);
    CheckMembers(entry);
  }
  if (object_ == nullptr) return;
  std::vector<std::string> names = known_;
  for (const KnownKey& entry : known) {
    CheckPresence(entry);
    names.emplace_back(entry.key);
    if (!entry.short_name.empty()) names.emplace_back(entry.short_name);
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::vector<WithoutEffect> without_effect;
  for (const JsonMember* unread : Unread()) {
    const JsonMember& member = *unread;
    // In objects that DeepSpeed checks, "auto" is dropped before the check, unknown names included.
    if (kind_ == SectionKind::kChecked && member.value.IsAuto()) continue;
    const auto it = std::ranges::find_if(known, [&](const KnownKey& entry) {
      return entry.key == member.key || (!member.key.empty() && entry.short_name == member.key);
    });
    if (it != known.end()) {
      ReportKnown(member, *it, without_effect);
    } else {
      ReportUnknown(member, names);
    }
  }
  ReportWithoutEffect(without_effect);
}

// One notice for all keys of one section that share a reason.
void SectionReader::ReportWithoutEffect(std::span<const WithoutEffect> keys) {
  std::vector<std::string_view> told;
  for (const WithoutEffect& first : keys) {
    const std::string_view why = first.known->why;
    if (std::ranges::find(told, why) != told.end()) continue;
    told.push_back(why);
    std::vector<std::string> names;
    for (const WithoutEffect& key : keys) {
      if (key.known->why == why) names.push_back(key.member->key);
    }
    diagnostics().Notice("CFG010", At(first.member->key), path_,
                         fmt::format("{}: no effect here: {}", Join(names, ", "), why));
  }
}

}  // namespace trireme
