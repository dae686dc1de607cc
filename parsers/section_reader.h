// Reads one JSON object into a struct, key by key: type, range, "auto", flags and unknown keys in one place. Never
// throws.
//   Fp16Config ParseFp16(SectionReader in) {
//     Fp16Config c;
//     in.Read("enabled", c.enabled);
//     in.Read("loss_scale", c.loss_scale, AtLeast(0));
//     in.RejectUnread(kKnown);  // fp16.hysteresys: unknown key. fix: did you mean "hysteresis"?
//     return c;
//   }
// A key that is absent or wrong leaves the default. Every key read leaves a row in `origins`.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parsers/config.h"
#include "parsers/diagnostics.h"
#include "parsers/json_tree.h"

namespace trireme {

// Numbers that a key may take; `text` says it to the user.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool open_low = false;  // low itself is out
  bool open_high = false;
  bool Contains(double value) const {
    return (open_low ? value > low : value >= low) && (open_high ? value < high : value <= high);
  }
  std::string Text() const;
};
inline Range AtLeast(double low) { return {.low = low}; }
inline Range Above(double low) { return {.low = low, .open_low = true}; }
inline Range Between(double low, double high) { return {.low = low, .high = high}; }
inline Range FromUpTo(double low, double high) { return {.low = low, .high = high, .open_high = true}; }

// How DeepSpeed treats an object, which decides about unknown keys, text in place of numbers, and "auto".
enum class SectionKind : uint8_t {
  kLoose,      // unknown keys warn, text is no number, "auto" needs a rule
  kChecked,    // unknown keys are errors, "12" and "true" are converted with a notice, "auto" is the default
  kArguments,  // unknown keys are errors; else as kLoose
};

// A key that DeepSpeed knows and this program does not act on. Its value is checked all the same: its type is that of
// the default ("true": a boolean, "0": a whole number of at least 0, "-1": one of any sign, "0.0": a number, "mean" or
// "''": text), of `choices` or `members`; without any of them it may be anything.
struct KnownKey {
  enum class Treatment : uint8_t {
    kNoEffect,  // a value other than the default gives a notice
    kRefused,   // a value that switches it on is an error: silence would change the result
  };
  std::string_view key;
  Treatment treatment;
  std::string_view default_value;  // as text; "" for objects and null. Off values are defaults too for kRefused
  std::string_view why;            // why nothing happens, or what would work instead; "": the section speaks for it
  std::string_view choices = {};   // "warn|ignore|fail": the texts that it may be, in any letter case
  SectionKind kind = SectionKind::kLoose;  // of an object
  std::span<const KnownKey> members = {};  // of an object
  std::string_view short_name = {};        // an alias, of which DeepSpeed refuses both at once
  bool nullable = false;                   // null is absent, as it is in every object that DeepSpeed does not check
  bool present_is_on = false;              // an object has no switch: it is on where it is
  bool required = false;                   // DeepSpeed stops where the section is and the key is not
};
inline constexpr auto kNoEffect = KnownKey::Treatment::kNoEffect;
inline constexpr auto kRefused = KnownKey::Treatment::kRefused;

// A key that a parse asked for, whether or not the text has it: the schema (parsers/schema) is made of these.
struct KeyRecord {
  enum class Type : uint8_t { kAny, kBool, kInteger, kNumber, kText, kPair, kSection };
  std::string path;
  Type type = Type::kAny;  // kAny: the section looks at the value itself
  Range range = {};
  SectionKind kind = SectionKind::kLoose;  // of the object that holds the key; of the section itself where it is one
  std::string flag;                        // of the command line, "" where none fills the key
  std::optional<KnownKey> known;           // neither read nor acted on
};

struct ReaderContext {
  std::string file;
  Diagnostics& diagnostics;
  std::vector<Origin>& origins;
  std::vector<KeyRecord>* records = nullptr;  // who asks for a schema
};

class SectionReader {
 public:
  // `object` may be null: the section is absent, and every read gives the default. `path` is "" for the root.
  SectionReader(ReaderContext& context, const JsonValue* object, std::string path, SectionKind kind);

  // True if the key holds a value of the right type and range, which `value` then has.
  bool Read(const std::string& key, bool& value);
  bool Read(const std::string& key, int64_t& value, Range range = {});
  bool Read(const std::string& key, int& value, Range range = {});
  bool Read(const std::string& key, double& value, Range range = {});
  bool Read(const std::string& key, std::string& value);
  // null and absent leave nullopt.
  template <class T>
  bool ReadOptional(const std::string& key, std::optional<T>& value, Range range = {});
  // A list of two numbers.
  bool Read(const std::string& key, std::array<double, 2>& value, Range range);

  // As Read, but an absent or "auto" key takes the flag; a written value that differs from the flag is an error.
  // "auto" without the flag: the default stands; is an error; stands, with a warning that a run will need the flag.
  // `null_is_absent`: else null is an error.
  enum class AutoRule : uint8_t { kDefault, kNeedsFlag, kNeedsFlagLater };
  template <class T>
  bool Fill(const std::string& key, T& value, const std::optional<T>& flag, const std::string& flag_name,
            Range range = {}, AutoRule rule = AutoRule::kDefault, bool null_is_absent = false);

  // The object under `key`; a reader of nothing where it is absent or no object (which is an error).
  SectionReader Section(const std::string& key, SectionKind kind, bool null_is_absent = false);

  // The value as written, null pointer where absent; for rules between keys that others read.
  const JsonValue* Find(const std::string& key) const;
  // Marks the key as read and returns its value as written; null pointer where absent.
  const JsonValue* Take(const std::string& key);
  // For aliases, deprecated and conditional keys: as if the key had been read.
  void Know(const std::string& key, KeyRecord::Type type = KeyRecord::Type::kAny, Range range = {});

  bool Exists() const { return object_ != nullptr; }
  bool Has(const std::string& key) const;     // present, and not null
  bool IsAuto(const std::string& key) const;  // present as "auto"
  Position At(const std::string& key) const;  // of the key, or of the section where it is absent
  Position Here() const;
  std::string Path(const std::string& key) const;
  Diagnostics& diagnostics() { return context_->diagnostics; }

  // Sets the row of a key in the table of origins. An empty source: the file, at the key's line. `by_default`: what the
  // value would be without the key, where that is known.
  void Record(const std::string& key, std::string value, std::string source = "", std::string by_default = "");

  // Members that nobody read and whose names are no remarks.
  std::vector<const JsonMember*> Unread() const;
  std::span<const std::string> known_names() const { return known_; }  // every name asked for
  // Every key that nobody read: known ones by their treatment, others by nearness to a known name.
  void RejectUnread(std::span<const KnownKey> known = {});

 private:
  // For the schema.
  void Note(const std::string& key, KeyRecord::Type type, Range range = {}, std::string flag = "");
  void NoteKnown(const KnownKey& known);
  template <class T>
  static constexpr KeyRecord::Type RecordTypeOf();

  const JsonMember* Member(const std::string& key) const;
  void TypeError(const std::string& key, const JsonValue& value, const std::string& wanted, const std::string& fix);
  void Converted(const std::string& key, const JsonValue& value, const std::string& into);
  bool InRange(const std::string& key, double value, Range range, const std::string& flag_name = "");
  // Null, if the value is absent, null or "auto" (each with what is to be said about it).
  const JsonValue* Present(const std::string& key);
  std::optional<int64_t> Integer(const std::string& key, const JsonValue& value);
  std::optional<double> Number(const std::string& key, const JsonValue& value);
  std::optional<bool> Boolean(const std::string& key, const JsonValue& value);
  struct WithoutEffect {
    const KnownKey* known;
    const JsonMember* member;
  };
  // Is the value one that DeepSpeed takes? Says so if not.
  bool IsValid(const JsonMember& member, const KnownKey& known);
  bool IsValidText(const JsonMember& member, const KnownKey& known);
  void ReportKnown(const JsonMember& member, const KnownKey& known, std::vector<WithoutEffect>& without_effect);
  void ReportWithoutEffect(std::span<const WithoutEffect> keys);
  void CheckMembers(const KnownKey& section);
  void CheckPresence(const KnownKey& known);  // of required keys and of aliases
  void ReportUnknown(const JsonMember& member, std::span<const std::string> names);
  void FlagConflict(const std::string& key, const std::string& written, const std::string& flag,
                    const std::string& flag_name);
  void AutoNeedsFlag(const std::string& key, const std::string& flag_name, AutoRule rule);

  ReaderContext* context_;
  const JsonValue* object_;
  std::string path_;
  SectionKind kind_;
  std::vector<std::string> known_;  // every name asked for
  std::set<std::string> read_;
};

std::string ToText(bool value);
std::string ToText(int64_t value);
std::string ToText(double value);  // shortest text that gives the same number
std::string ToText(const std::string& value);

template <class T>
constexpr KeyRecord::Type SectionReader::RecordTypeOf() {
  if constexpr (std::is_same_v<T, bool>) return KeyRecord::Type::kBool;
  if constexpr (std::is_integral_v<T>) return KeyRecord::Type::kInteger;
  if constexpr (std::is_floating_point_v<T>) return KeyRecord::Type::kNumber;
  return KeyRecord::Type::kText;
}

template <class T>
bool SectionReader::ReadOptional(const std::string& key, std::optional<T>& value, Range range) {
  if (!Has(key)) {
    Note(key, RecordTypeOf<T>(), range);
    Take(key);
    Record(key, "absent", "default", "absent");
    return false;
  }
  T read{};
  bool ok = false;
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    ok = Read(key, read, range);
  } else {
    ok = Read(key, read);
  }
  if (ok) value = read;
  return ok;
}

template <class T>
bool SectionReader::Fill(const std::string& key, T& value, const std::optional<T>& flag, const std::string& flag_name,
                         Range range, AutoRule rule, bool null_is_absent) {
  Note(key, RecordTypeOf<T>(), range, flag_name);
  if ((null_is_absent ? Has(key) : Find(key) != nullptr) && !IsAuto(key)) {
    bool ok = false;
    if constexpr (std::is_same_v<T, bool>) {
      ok = Read(key, value);
    } else {
      ok = Read(key, value, range);
    }
    if (ok && flag && *flag != value) FlagConflict(key, ToText(value), ToText(*flag), flag_name);
    return ok;
  }
  const bool is_auto = IsAuto(key);
  const std::string by_default = ToText(value);
  Take(key);
  if (flag) {
    if (!InRange(key, static_cast<double>(*flag), range, flag_name)) return false;
    value = *flag;
    Record(key, ToText(value), flag_name, by_default);
    return true;
  }
  if (is_auto && rule != AutoRule::kDefault) AutoNeedsFlag(key, flag_name, rule);
  if (is_auto && rule == AutoRule::kNeedsFlag) return false;
  Record(key, by_default, is_auto ? "default (\"auto\")" : "default", by_default);
  return false;
}

}  // namespace trireme
