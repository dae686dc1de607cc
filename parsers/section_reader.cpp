#include "parsers/section_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/base/strings.h"

namespace trireme {
namespace {

using Kind = JsonValue::Kind;

constexpr double kTwoTo63 = 9223372036854775808.0;

// Pydantic's digits: sign, single underscores between digits, a zero fraction.
std::optional<int64_t> IntegerFromText(std::string_view text) {
  std::string digits;
  text = Trim(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  if (const size_t dot = text.find('.'); dot != std::string_view::npos) {
    if (text.find_first_not_of('0', dot + 1) != std::string_view::npos) return std::nullopt;
    text = text.substr(0, dot);
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && i > 0 && i + 1 < text.size() && text[i - 1] != '_') continue;
    digits += text[i];
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<double> NumberFromText(std::string_view text) {
  text = Trim(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<bool> BooleanFromText(std::string_view text) {
  static const std::set<std::string> kTrue = {"true", "t", "yes", "y", "on", "1"};
  static const std::set<std::string> kFalse = {"false", "f", "no", "n", "off", "0"};
  const std::string lower = ToLower(text);
  if (kTrue.contains(lower)) return true;
  if (kFalse.contains(lower)) return false;
  return std::nullopt;
}

bool IsSilentName(std::string_view key) { return key.starts_with('_') || key.starts_with('#') || key == "comment"; }

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

bool IsDefault(const JsonValue& value, std::string_view default_value) {
  if (value.kind == Kind::kNull || value.IsAuto()) return true;
  if (value.kind == Kind::kObject) return !IsOn(value);
  if (value.kind == Kind::kBool) return (value.boolean ? "true" : "false") == default_value;
  if (value.kind == Kind::kInteger || value.kind == Kind::kNumber) return NumberFromText(default_value) == value.number;
  if (value.kind == Kind::kArray) return value.elements.empty();
  return value.kind == Kind::kText && ToLower(value.text) == ToLower(default_value);
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

std::string Range::Text() const {
  const std::string from = fmt::format("{} {}", open_low ? "above" : "at least", low);
  const std::string to = fmt::format("{} {}", open_high ? "below" : "at most", high);
  if (std::isinf(high)) return from;
  if (std::isinf(low)) return to;
  return from + " and " + to;
}

std::string ToText(bool value) { return value ? "true" : "false"; }
std::string ToText(int64_t value) { return std::to_string(value); }
std::string ToText(double value) { return fmt::format("{}", value); }
std::string ToText(const std::string& value) { return value; }

SectionReader::SectionReader(ReaderContext& context, const JsonValue* object, std::string path, SectionKind kind)
    : context_(&context), object_(object), path_(std::move(path)), kind_(kind) {}

const JsonMember* SectionReader::Member(const std::string& key) const {
  return object_ == nullptr ? nullptr : object_->Find(key);
}

std::string SectionReader::Path(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

Position SectionReader::Here() const {
  return object_ == nullptr ? Position{context_->file, 0, 0} : Position{context_->file, object_->line, object_->column};
}

Position SectionReader::At(const std::string& key) const {
  const JsonMember* member = Member(key);
  return member == nullptr ? Here() : Position{context_->file, member->line, member->column};
}

bool SectionReader::Has(const std::string& key) const {
  const JsonMember* member = Member(key);
  return member != nullptr && member->value.kind != Kind::kNull;
}

bool SectionReader::IsAuto(const std::string& key) const {
  const JsonMember* member = Member(key);
  return member != nullptr && member->value.IsAuto();
}

void SectionReader::Know(const std::string& key) {
  known_.push_back(key);
  Note(key, KeyRecord::Type::kAny);
}

void SectionReader::Note(const std::string& key, KeyRecord::Type type, Range range, std::string flag) {
  if (context_->records == nullptr) return;
  context_->records->push_back({Path(key), type, range, kind_, std::move(flag), std::nullopt});
}

void SectionReader::NoteKnown(const KnownKey& known) {
  if (context_->records == nullptr) return;
  const KeyRecord::Type type = known.members.empty() ? KeyRecord::Type::kAny : KeyRecord::Type::kSection;
  for (const std::string_view name : {known.key, known.short_name}) {
    if (!name.empty()) context_->records->push_back({Path(std::string(name)), type, {}, kind_, "", known});
  }
}

const JsonValue* SectionReader::Take(const std::string& key) {
  Know(key);
  const JsonMember* member = Member(key);
  if (member == nullptr) return nullptr;
  read_.insert(key);
  return &member->value;
}

void SectionReader::Record(const std::string& key, std::string value, std::string source, std::string by_default) {
  if (source.empty()) source = fmt::format("{}:{}", context_->file, At(key).line);
  const std::string path = Path(key);
  for (Origin& origin : context_->origins) {
    if (origin.key == path) {
      origin.value = std::move(value);
      origin.source = std::move(source);
      if (!by_default.empty()) origin.default_value = std::move(by_default);
      return;
    }
  }
  context_->origins.push_back({path, std::move(value), std::move(source), std::move(by_default)});
}

void SectionReader::TypeError(const std::string& key, const JsonValue& value, const std::string& wanted,
                              const std::string& fix) {
  const bool tuner = value.kind == Kind::kArray && !wanted.starts_with("list");
  diagnostics().Error("CFG005", At(key), Path(key), fmt::format("{} is no {}", Describe(value), wanted),
                      tuner ? "write the one value to train with: a list is input of DeepSpeed's autotuner" : fix);
}

void SectionReader::Converted(const std::string& key, const JsonValue& value, const std::string& into) {
  diagnostics().Notice("CFG013", At(key), Path(key), fmt::format("{} is taken as {}", Describe(value), into),
                       fmt::format("write {}", into));
}

bool SectionReader::InRange(const std::string& key, double value, Range range, const std::string& flag_name) {
  if (range.Contains(value)) return true;
  const std::string source = flag_name.empty() ? "" : fmt::format(" ({})", flag_name);
  diagnostics().Error("CFG006", At(key), Path(key),
                      fmt::format("{}{} is out of range: it must be {}", ToText(value), source, range.Text()),
                      fmt::format("set a value {}", range.Text()));
  return false;
}

const JsonValue* SectionReader::Present(const std::string& key) {
  const JsonValue* value = Take(key);
  if (value == nullptr) return nullptr;
  if (value->IsAuto()) {
    if (kind_ == SectionKind::kChecked) return nullptr;
    diagnostics().Error("CFG007", At(key), Path(key), "\"auto\" has no rule for this key",
                        "write the value, or remove the key for the default");
    return nullptr;
  }
  return value;
}

std::optional<int64_t> SectionReader::Integer(const std::string& key, const JsonValue& value) {
  if (value.kind == Kind::kInteger) return value.integer;
  if (value.kind == Kind::kNumber) {
    if (value.number != std::trunc(value.number)) {
      TypeError(key, value, "whole number", fmt::format("write {:.0f} or another whole number", value.number));
    } else if (value.number >= kTwoTo63 || value.number < -kTwoTo63) {
      TypeError(key, value, "whole number below 2^63", "write a smaller one");
    } else {
      return static_cast<int64_t>(value.number);
    }
    return std::nullopt;
  }
  std::optional<int64_t> converted;
  if (value.kind == Kind::kText) converted = IntegerFromText(value.text);
  if (value.kind == Kind::kBool) converted = value.boolean ? 1 : 0;
  if (converted && kind_ == SectionKind::kChecked) {
    Converted(key, value, ToText(*converted));
    return converted;
  }
  TypeError(
      key, value, "whole number",
      converted ? fmt::format("write {} without quotes", *converted) : "write a whole number, for example 16 or 5e8");
  return std::nullopt;
}

std::optional<double> SectionReader::Number(const std::string& key, const JsonValue& value) {
  if (value.kind == Kind::kInteger || value.kind == Kind::kNumber) return value.number;
  std::optional<double> converted;
  if (value.kind == Kind::kText) converted = NumberFromText(value.text);
  if (value.kind == Kind::kBool) converted = value.boolean ? 1 : 0;
  if (converted && kind_ == SectionKind::kChecked) {
    Converted(key, value, ToText(*converted));
    return converted;
  }
  TypeError(key, value, "number",
            converted ? fmt::format("write {} without quotes", ToText(*converted)) : "write a number, for example 0.1");
  return std::nullopt;
}

std::optional<bool> SectionReader::Boolean(const std::string& key, const JsonValue& value) {
  if (value.kind == Kind::kBool) return value.boolean;
  std::optional<bool> converted;
  if (value.kind == Kind::kText) converted = BooleanFromText(value.text);
  if ((value.kind == Kind::kInteger || value.kind == Kind::kNumber) && (value.number == 0 || value.number == 1)) {
    converted = value.number == 1;
  }
  if (converted) {
    Converted(key, value, ToText(*converted));
    return converted;
  }
  TypeError(key, value, "boolean", "write true or false, in lower case and without quotes");
  return std::nullopt;
}

bool SectionReader::Read(const std::string& key, bool& value) {
  Note(key, KeyRecord::Type::kBool);
  const std::string by_default = ToText(value);
  const JsonValue* found = Present(key);
  const std::optional<bool> read = found ? Boolean(key, *found) : std::nullopt;
  if (read) value = *read;
  Record(key, ToText(value), read ? "" : "default", by_default);
  return read.has_value();
}

bool SectionReader::Read(const std::string& key, int64_t& value, Range range) {
  Note(key, KeyRecord::Type::kInteger, range);
  const std::string by_default = ToText(value);
  const JsonValue* found = Present(key);
  std::optional<int64_t> read = found ? Integer(key, *found) : std::nullopt;
  if (read && !InRange(key, static_cast<double>(*read), range)) read.reset();
  if (read) value = *read;
  Record(key, ToText(value), read ? "" : "default", by_default);
  return read.has_value();
}

bool SectionReader::Read(const std::string& key, int& value, Range range) {
  range.low = std::max(range.low, -2147483648.0);
  range.high = std::min(range.high, 2147483647.0);
  int64_t wide = value;
  const bool ok = Read(key, wide, range);
  value = static_cast<int>(wide);
  return ok;
}

bool SectionReader::Read(const std::string& key, double& value, Range range) {
  Note(key, KeyRecord::Type::kNumber, range);
  const std::string by_default = ToText(value);
  const JsonValue* found = Present(key);
  std::optional<double> read = found ? Number(key, *found) : std::nullopt;
  if (read && !InRange(key, *read, range)) read.reset();
  if (read) value = *read;
  Record(key, ToText(value), read ? "" : "default", by_default);
  return read.has_value();
}

bool SectionReader::Read(const std::string& key, std::string& value) {
  Note(key, KeyRecord::Type::kText);
  const std::string by_default = value;
  const JsonValue* found = Present(key);
  const bool ok = found != nullptr && found->kind == Kind::kText;
  if (found != nullptr && !ok) TypeError(key, *found, "text", "write it in quotes");
  if (ok) value = found->text;
  Record(key, value, ok ? "" : "default", by_default);
  return ok;
}

bool SectionReader::Read(const std::string& key, std::array<double, 2>& value, Range range) {
  Note(key, KeyRecord::Type::kPair, range);
  const std::string by_default = fmt::format("[{}, {}]", value[0], value[1]);
  const JsonValue* found = Present(key);
  bool ok = found != nullptr;
  if (ok && (found->kind != Kind::kArray || found->elements.size() != 2)) {
    TypeError(key, *found, "list of two numbers", fmt::format("write [{}, {}]", value[0], value[1]));
    ok = false;
  }
  std::array<double, 2> read = value;
  for (size_t i = 0; ok && i < 2; ++i) {
    const std::optional<double> number = Number(key, found->elements[i]);
    ok = number && InRange(key, *number, range);
    if (ok) read[i] = *number;
  }
  if (ok) value = read;
  Record(key, fmt::format("[{}, {}]", value[0], value[1]), ok ? "" : "default", by_default);
  return ok;
}

SectionReader SectionReader::Section(const std::string& key, SectionKind kind, bool null_is_absent) {
  if (context_->records != nullptr) {
    context_->records->push_back({Path(key), KeyRecord::Type::kSection, {}, kind, "", std::nullopt});
  }
  const JsonValue* value = Take(key);
  const bool absent = value == nullptr || (value->kind == Kind::kNull && null_is_absent);
  if (!absent && value->kind != Kind::kObject) {
    TypeError(key, *value, "object", value->kind == Kind::kNull ? "remove the key" : "write { ... } with its keys");
  }
  return {*context_, !absent && value->kind == Kind::kObject ? value : nullptr, Path(key), kind};
}

void SectionReader::FlagConflict(const std::string& key, const std::string& written, const std::string& flag,
                                 const std::string& flag_name) {
  diagnostics().Error("CFG008", At(key), Path(key),
                      fmt::format("the file says {}, but {} says {}", written, flag_name, flag),
                      fmt::format("remove {}, or write \"auto\" in the file so that the flag decides", flag_name));
}

void SectionReader::AutoNeedsFlag(const std::string& key, const std::string& flag_name) {
  diagnostics().Error("CFG007", At(key), Path(key),
                      fmt::format("\"auto\" needs a value, and {} is not given", flag_name),
                      fmt::format("pass {}, or write the value", flag_name));
}

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
  if (!IsValid(member, known)) return;
  const bool on = known.default_value == "true" || IsOn(member.value);
  if (IsDefault(member.value, known.default_value)) return;
  if (known.treatment == kNoEffect) {
    if (!known.why.empty()) without_effect.push_back({&known, &member});
  } else if (on) {
    int total = 0;
    std::vector<std::string> switches;
    FindEnabled(member.value, Path(member.key), total, switches);
    const bool section = member.value.kind == Kind::kObject;
    diagnostics().Error(
        "CFG009", At(member.key), Path(member.key),
        !section ? fmt::format("DeepSpeed knows this key, but {} is not supported here", Describe(member.value))
        : switches.empty()
            ? "DeepSpeed knows this section; it is on, and not supported here"
            : fmt::format("DeepSpeed knows this section; it is on ({}), and not supported here", Join(switches, ", ")),
        std::string(known.why));
  }
}

void SectionReader::ReportUnknown(const JsonMember& member, std::span<const std::string> names) {
  const Position at{context_->file, member.line, member.column};
  if (const std::optional<std::string> near = Suggest(member.key, names)) {
    diagnostics().Error("CFG004", at, Path(member.key), "unknown key", fmt::format("did you mean \"{}\"?", *near));
  } else if (kind_ == SectionKind::kLoose) {
    diagnostics().Warning("CFG004", at, Path(member.key), "unknown key, which has no effect",
                          "remove it, or start its name with _ if it is a remark");
  } else {
    diagnostics().Error("CFG004", at, Path(member.key), "unknown key",
                        fmt::format("remove it; known here: {}", Join(names, ", ")));
  }
}

std::vector<const JsonMember*> SectionReader::Unread() const {
  std::vector<const JsonMember*> unread;
  if (object_ == nullptr) return unread;
  for (const JsonMember& member : object_->members) {
    if (!read_.contains(member.key) && !IsSilentName(member.key)) unread.push_back(&member);
  }
  return unread;
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
  const bool on = object != nullptr && IsOn(*object);
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
    const auto it = std::ranges::find_if(
        known, [&](const KnownKey& entry) { return entry.key == member.key || entry.short_name == member.key; });
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
