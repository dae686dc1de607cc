#include "parsers/section_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "engine/base/strings.h"
#include "parsers/text_values.h"

namespace trireme {
namespace {

using Kind = JsonValue::Kind;

constexpr double kTwoTo63 = 9223372036854775808.0;

bool IsSilentName(std::string_view key) { return key.starts_with('_') || key.starts_with('#') || key == "comment"; }

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

const JsonValue* SectionReader::Find(const std::string& key) const {
  const JsonMember* member = Member(key);
  return member == nullptr ? nullptr : &member->value;
}

std::string SectionReader::Path(const std::string& key) const {
  const std::string name = key.empty() ? "\"\"" : key;
  return path_.empty() ? name : path_ + "." + name;
}

Position SectionReader::Here() const {
  return object_ == nullptr ? Position{context_->file, 0, 0}
                            : PositionIn(context_->file, object_->line, object_->column);
}

Position SectionReader::At(const std::string& key) const {
  const JsonMember* member = Member(key);
  return member == nullptr ? Here() : PositionIn(context_->file, *member);
}

bool SectionReader::Has(const std::string& key) const {
  const JsonMember* member = Member(key);
  return member != nullptr && member->value.kind != Kind::kNull;
}

bool SectionReader::IsAuto(const std::string& key) const {
  const JsonMember* member = Member(key);
  return member != nullptr && member->value.IsAuto();
}

void SectionReader::Know(const std::string& key, KeyRecord::Type type, Range range) {
  known_.push_back(key);
  Note(key, type, range);
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
  if (source.empty()) {
    const Position at = At(key);
    source = at.line > 0 ? fmt::format("{}:{}", at.file, at.line) : at.file;
  }
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
    if (std::isinf(value.number)) return std::nullopt;  // reported where the text was read
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
  if (std::isinf(value.number)) return std::nullopt;  // reported where the text was read
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
                      fmt::format("the config says {}, but {} says {}", written, flag_name, flag),
                      fmt::format("remove {}, or write \"auto\" in the file so that the flag decides", flag_name));
}

void SectionReader::AutoNeedsFlag(const std::string& key, const std::string& flag_name, AutoRule rule) {
  const bool later = rule == AutoRule::kNeedsFlagLater;
  diagnostics().Add(
      {later ? Severity::kWarning : Severity::kError, "CFG007", At(key), Path(key),
       later ? fmt::format("\"auto\": no value is needed here, but `trireme train` stops without {}", flag_name)
             : fmt::format("\"auto\" needs a value, and {} is not given", flag_name),
       fmt::format("pass {}, or write the value", flag_name)});
}

void SectionReader::ReportUnknown(const JsonMember& member, std::span<const std::string> names) {
  const Position at = PositionIn(context_->file, member);
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

}  // namespace trireme
