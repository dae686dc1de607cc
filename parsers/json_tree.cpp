#include "parsers/json_tree.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "engine/base/printable.h"
#include "engine/base/strings.h"

namespace trireme {
namespace {

constexpr int kMaxDepth = 100;  // deeper than any config; keeps the recursion off the end of the stack

struct SyntaxError {
  int line, column;
  std::string what, fix;
};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// optional -, 0 or digits, optional .digits, optional exponent; the whole of `token`.
bool IsNumber(std::string_view token, bool& integral) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t begin = i;
    while (i < token.size() && IsDigit(token[i])) ++i;
    return i > begin;
  };
  if (i < token.size() && token[i] == '-') ++i;
  if (i < token.size() && token[i] == '0') {
    ++i;
  } else if (!digits()) {
    return false;
  }
  integral = true;
  if (i < token.size() && token[i] == '.') {
    ++i;
    integral = false;
    if (!digits()) return false;
  }
  if (i < token.size() && (token[i] == 'e' || token[i] == 'E')) {
    ++i;
    integral = false;
    if (i < token.size() && (token[i] == '+' || token[i] == '-')) ++i;
    if (!digits()) return false;
  }
  return i == token.size();
}

void AppendUtf8(uint32_t code, std::string& out) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

class Scanner {
 public:
  Scanner(std::string_view text, const std::string& file, Diagnostics& diagnostics)
      : text_(text), file_(file), diagnostics_(diagnostics) {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  }

  JsonValue Root() {
    SkipBlanks();
    JsonValue root;
    if (!AtEnd() && (Peek() == '{' || Peek() == '[')) {
      root = Value(0);
    } else if (LoneLiteral(root)) {
      return root;
    } else {  // a root object without braces
      root.kind = JsonValue::Kind::kObject;
      root.line = line_;
      root.column = column_;
      Members(root, /*closing=*/'\0', 0);
    }
    SkipBlanks();
    if (!AtEnd()) Fail("text after the end of the outermost object", "remove it, or move it inside the braces");
    return root;
  }

 private:
  bool AtEnd() const { return pos_ >= text_.size(); }
  char Peek(size_t ahead = 0) const { return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0'; }
  bool Sees(std::string_view word) const { return text_.substr(pos_).starts_with(word); }

  char Next() {
    const char c = text_[pos_++];
    if (c == '\n') {
      ++line_;
      column_ = 1;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {  // continuation bytes of UTF-8 are no columns
      ++column_;
    }
    return c;
  }

  [[noreturn]] void Fail(std::string what, std::string fix) const { FailAt(line_, column_, what, fix); }
  [[noreturn]] static void FailAt(int line, int column, std::string what, std::string fix) {
    throw SyntaxError{line, column, std::move(what), std::move(fix)};
  }

  // An object or list that never ends; a value without quotes that ran over its bracket is the usual reason.
  [[noreturn]] void FailUnclosed(const JsonValue& open, char closing) const {
    const std::string what =
        fmt::format("the file ends before the '{}' that closes {} opened at {}:{}", closing,
                    open.kind == JsonValue::Kind::kArray ? "the list" : "the object", open.line, open.column);
    if (bare_line_ > 0) {
      FailAt(bare_line_, bare_column_,
             fmt::format("the value {} has no quotes and is no number, so it runs to the end of its line; then {}",
                         Quoted(bare_), what),
             "put text into quotes, write numbers in full, and set a comma after each value");
    }
    Fail(what, fmt::format("add the '{}'", closing));
  }

  void SkipBlanks() {
    while (!AtEnd()) {
      if (Peek() == ' ' || Peek() == '\t' || Peek() == '\r' || Peek() == '\n') {
        Next();
      } else if (Peek() == '#' || Sees("//")) {
        while (!AtEnd() && Peek() != '\n') Next();
      } else if (Sees("/*")) {
        const int line = line_, column = column_;
        Next(), Next();
        while (!AtEnd() && !Sees("*/")) Next();
        if (AtEnd()) FailAt(line, column, "the comment /* never ends", "close it with */");
        Next(), Next();
      } else {
        break;
      }
    }
  }

  // A text of nothing but null, true, false or a number.
  bool LoneLiteral(JsonValue& root) {
    root.line = line_;
    root.column = column_;
    if (!Literal(Trim(text_.substr(pos_)), root)) return false;
    pos_ = text_.size();
    return true;
  }

  JsonValue Value(int depth) {
    if (depth > kMaxDepth) Fail(fmt::format("more than {} levels of nesting", kMaxDepth), "flatten the file");
    JsonValue value;
    value.line = line_;
    value.column = column_;
    const char c = Peek();
    if (c == '{') {
      Next();
      value.kind = JsonValue::Kind::kObject;
      Members(value, '}', depth);
    } else if (c == '[') {
      Next();
      value.kind = JsonValue::Kind::kArray;
      Elements(value, depth);
    } else if (Sees("'''")) {
      value.kind = JsonValue::Kind::kText;
      value.text = BlockText();
    } else if (c == '"' || c == '\'') {
      value.kind = JsonValue::Kind::kText;
      value.text = QuotedText();
    } else if (AtEnd() || c == '}' || c == ']' || c == ',' || c == ':') {
      Fail(AtEnd() ? "the file ends where a value is expected" : fmt::format("'{}' where a value is expected", c),
           "write the value, or remove its key");
    } else {
      Bare(value);
    }
    return value;
  }

  void Members(JsonValue& object, char closing, int depth) {
    std::set<std::string> seen;
    SkipBlanks();
    while (!(closing == '\0' ? AtEnd() : Peek() == closing && !AtEnd())) {
      if (AtEnd()) FailUnclosed(object, closing);
      JsonMember member;
      member.line = line_;
      member.column = column_;
      member.key = Key();
      SkipBlanks();
      if (Peek() != ':') {
        Fail(fmt::format("no ':' after the key {}", Quoted(member.key)), "write \"key\": value");
      }
      Next();
      SkipBlanks();
      const size_t outer = path_.size();
      path_ += (outer == 0 ? "" : ".") + member.key;
      member.value = Value(depth + 1);
      if (!seen.insert(member.key).second) ReportDuplicate(object, member);
      path_.resize(outer);
      object.members.push_back(std::move(member));
      SkipBlanks();
      if (Peek() == ',') Next();
      SkipBlanks();
    }
    if (closing != '\0') Next();
  }

  void ReportDuplicate(const JsonValue& object, const JsonMember& member) {
    const JsonMember* first = object.Find(member.key);
    diagnostics_.Error("CFG003", {file_, member.line, member.column}, path_,
                       fmt::format("the key stands twice in one object, first at line {}", first ? first->line : 0),
                       "keep one of the two");
  }

  void Elements(JsonValue& list, int depth) {
    SkipBlanks();
    while (Peek() != ']') {
      if (AtEnd()) FailUnclosed(list, ']');
      list.elements.push_back(Value(depth + 1));
      SkipBlanks();
      if (Peek() == ',') Next();
      SkipBlanks();
    }
    Next();
  }

  std::string Key() {
    const char c = Peek();
    if (c == '"' || c == '\'') return QuotedText();
    const size_t begin = pos_;
    while (!AtEnd() && std::string_view(" \t\r\n{}[],:").find(Peek()) == std::string_view::npos) Next();
    if (pos_ == begin)
      Fail(fmt::format("{} where a key is expected", Quoted(std::string(1, c))), "write \"key\": value");
    return std::string(text_.substr(begin, pos_ - begin));
  }

  std::string QuotedText() {
    const int line = line_, column = column_;
    const char quote = Next();
    std::string out;
    while (true) {
      if (AtEnd() || Peek() == '\n') FailAt(line, column, "the text that starts here has no closing quote", "close it");
      if (static_cast<unsigned char>(Peek()) < 0x20) {
        Fail("a control character inside a text", "write it as an escape: \\t, \\n, \\u001f");
      }
      const char c = Next();
      if (c == quote) return out;
      if (c == '\\') {
        Escape(out);
      } else {
        out += c;
      }
    }
  }

  void Escape(std::string& out) {
    static constexpr std::string_view kFrom = "\"'\\/bfnrt", kTo = "\"'\\/\b\f\n\r\t";
    if (AtEnd()) Fail("the file ends inside an escape", "close the text");
    const char c = Next();
    if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
      out += kTo[i];
    } else if (c == 'u') {
      uint32_t code = Hex4();
      if (code >= 0xD800 && code < 0xDC00 && Sees("\\u")) {  // first half of a surrogate pair
        Next(), Next();
        const uint32_t low = Hex4();
        if (low >= 0xDC00 && low < 0xE000) {
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        } else {
          AppendUtf8(code, out);
          code = low;
        }
      }
      AppendUtf8(code, out);
    } else {
      Fail(fmt::format("unknown escape \\{}", c), "the escapes are \\\" \\' \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX");
    }
  }

  uint32_t Hex4() {
    uint32_t code = 0;
    const std::string_view digits = text_.substr(pos_, 4);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() < 4 || error != std::errc() || end != digits.data() + 4) {
      Fail("\\u needs four hexadecimal digits", "write for example \\u00e9");
    }
    for (int i = 0; i < 4; ++i) Next();
    return code;
  }

  // '''text''': the blanks before the opening column are no part of it, nor is the first and last line break.
  std::string BlockText() {
    const int line = line_, column = column_;
    for (int i = 0; i < 3; ++i) Next();
    while (Peek() == ' ' || Peek() == '\t' || Peek() == '\r') Next();
    if (Peek() == '\n') Next();
    std::string out;
    while (!Sees("'''")) {
      if (AtEnd()) FailAt(line, column, "the text that ''' opens here never ends", "close it with '''");
      if (column_ < column && (Peek() == ' ' || Peek() == '\t')) {
        Next();
        continue;
      }
      const char c = Next();
      if (c != '\r') out += c;
    }
    for (int i = 0; i < 3; ++i) Next();
    if (out.ends_with('\n')) out.pop_back();
    return out;
  }

  // true, false, null or a number if a mark follows; else everything up to the end of the line is text.
  void Bare(JsonValue& value) {
    const size_t begin = pos_;
    while (true) {
      const char c = Peek();
      const bool line_end = AtEnd() || c == '\n' || c == '\r';
      if (line_end || c == ',' || c == '}' || c == ']' || c == '#' || Sees("//") || Sees("/*")) {
        const std::string_view token = Trim(text_.substr(begin, pos_ - begin));
        if (Literal(token, value)) return;
        if (!line_end && ForeignLiteral(token, value)) return;
        if (line_end) {
          value.kind = JsonValue::Kind::kText;
          value.text = token;
          if (token.find_first_of(",}]") != std::string_view::npos) {
            bare_ = token;
            bare_line_ = value.line;
            bare_column_ = value.column;
          }
          return;
        }
      }
      Next();
    }
  }

  // What Python, JavaScript and printed dictionaries write before a comma or bracket; reading goes on behind it.
  bool ForeignLiteral(std::string_view token, JsonValue& value) {
    const std::string lower = ToLower(token);
    const bool boolean = lower == "true" || lower == "false";
    const bool nothing = lower == "none" || lower == "null" || lower == "undefined";
    const std::string_view number = std::string_view(lower).substr(lower.starts_with('-') || lower.starts_with('+'));
    const bool no_number = number == "nan" || number == "inf" || number == "infinity";
    if (!boolean && !nothing && !no_number) return false;
    diagnostics_.Error("CFG002", {file_, value.line, value.column}, path_, fmt::format("{} is no value in JSON", token),
                       boolean   ? fmt::format("write {}", lower)
                       : nothing ? "write null, or remove the key for the default"
                                 : "write a finite number, or remove the key for the default");
    if (boolean) {
      value.kind = JsonValue::Kind::kBool;
      value.boolean = lower == "true";
    } else if (no_number) {
      value.kind = JsonValue::Kind::kNumber;
      value.number = std::numeric_limits<double>::infinity();
      value.text = token;
    }
    return true;
  }

  bool Literal(std::string_view token, JsonValue& value) {
    if (token == "null") return true;
    if (token == "true" || token == "false") {
      value.kind = JsonValue::Kind::kBool;
      value.boolean = token == "true";
      return true;
    }
    bool integral = false;
    if (!IsNumber(token, integral)) return false;
    value.text = token;
    const char *first = token.data(), *last = first + token.size();
    const bool overflow = std::from_chars(first, last, value.number).ec == std::errc::result_out_of_range;
    if (overflow) {
      const bool tiny = token.find("e-") != std::string_view::npos || token.find("E-") != std::string_view::npos;
      if (!tiny) {
        diagnostics_.Error("CFG002", {file_, value.line, value.column}, path_,
                           fmt::format("the number {} is too large", Quoted(token)), "write a smaller one");
      }
      value.number = tiny ? 0 : std::numeric_limits<double>::infinity();
    }
    value.kind = JsonValue::Kind::kNumber;
    if (integral) {
      if (std::from_chars(first, last, value.integer).ec == std::errc()) value.kind = JsonValue::Kind::kInteger;
    } else if (value.number == std::trunc(value.number) && std::abs(value.number) < 1e10) {
      value.kind = JsonValue::Kind::kInteger;
      value.integer = static_cast<int64_t>(value.number);
    }
    return true;
  }

  std::string_view text_;
  const std::string& file_;
  Diagnostics& diagnostics_;
  size_t pos_ = 0;
  int line_ = 1, column_ = 1;
  std::string path_;  // of the member that is being read: "zero_optimization.stage"
  std::string bare_;  // the last value without quotes that contains a mark
  int bare_line_ = 0, bare_column_ = 0;
};

}  // namespace

const JsonMember* JsonValue::Find(std::string_view key) const {
  for (const JsonMember& member : members) {
    if (member.key == key) return &member;
  }
  return nullptr;
}

std::optional<JsonValue> ReadJson(std::string_view text, const std::string& file, Diagnostics& diagnostics) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    diagnostics.Error("CFG002", {file, 1, 1}, "", "the file is UTF-16 or UTF-32, and a config is UTF-8",
                      "save it as UTF-8, for example with iconv -f UTF-16 -t UTF-8");
    return std::nullopt;
  }
  try {
    return Scanner(text, file, diagnostics).Root();
  } catch (const SyntaxError& error) {
    diagnostics.Error("CFG002", {file, error.line, error.column}, "", error.what, error.fix);
    return std::nullopt;
  }
}

std::string Quoted(std::string_view text) { return "\"" + Printable(text, 80) + "\""; }

Position PositionIn(const std::string& file, int line, int column) {
  return line == kSetByWith ? Position{"--with", 0, 0} : Position{file, line, column};
}

std::string Describe(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBool:
      return value.boolean ? "true" : "false";
    case JsonValue::Kind::kInteger:
    case JsonValue::Kind::kNumber:
      return "the number " + Printable(value.text, 80);
    case JsonValue::Kind::kText:
      return "the text " + Quoted(value.text);
    case JsonValue::Kind::kArray:
      return "a list";
    case JsonValue::Kind::kObject:
      return "an object";
  }
  return "";
}

}  // namespace trireme
