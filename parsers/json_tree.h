// The text of a config as a tree whose every key and value knows its line and column.
//   std::optional<JsonValue> root = ReadJson(text, "ds_config.json", diagnostics);
// Grammar: Hjson, which DeepSpeed reads files with. Every JSON text is accepted; beyond it: comments (#, //, /* */), a
// comma after the last member, missing commas at line ends, keys without quotes, single quotes, ''' texts, a root
// object without braces, and values without quotes, which run to the end of their line.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parsers/diagnostics.h"

namespace trireme {

struct JsonMember;

struct JsonValue {
  enum class Kind : uint8_t { kNull, kBool, kInteger, kNumber, kText, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;  // kInteger: also 5e8 and 1.0, whose value is integral and below 1e10 (Hjson's rule)
  double number = 0;    // kInteger and kNumber; infinite where the text has no finite one, which is reported then
  std::string text;     // kText: decoded; numbers: as written
  std::vector<JsonValue> elements;
  std::vector<JsonMember> members;  // in the order of the file; of a repeated key both
  int line = 0, column = 0;

  bool IsAuto() const { return kind == Kind::kText && text == "auto"; }
  const JsonMember* Find(std::string_view key) const;
};

struct JsonMember {
  std::string key;
  int line = 0, column = 0;  // of the key
  JsonValue value;
};

// The line of what does not stand in the file: `plan --with` set it (SetKeys in layout_text.h).
inline constexpr int kSetByWith = -1;
// For messages; what --with set is there and at no line.
Position PositionIn(const std::string& file, int line, int column);
inline Position PositionIn(const std::string& file, const JsonMember& member) {
  return PositionIn(file, member.line, member.column);
}

// The root value, or nullopt after a syntax error (CFG002). Each key that an object repeats is an error (CFG003).
std::optional<JsonValue> ReadJson(std::string_view text, const std::string& file, Diagnostics& diagnostics);

std::string Describe(
    const JsonValue& value);                // `the text "8"`, `the number 1.5`, `true`, `null`, `an object`, `a list`
std::string Quoted(std::string_view text);  // in quotes, control characters escaped, cut after 80 bytes

}  // namespace trireme
