#include "engine/data/bpe/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/core.h>
#include <pcre2.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/base/error.h"

namespace trireme::data {
namespace {

constexpr size_t kFirstStackBytes = 32 << 10, kLastStackBytes = 64 << 20;

[[noreturn]] void Refuse(std::string_view pattern, const std::string& what, const std::string& where) {
  throw Error(ErrorCode::kData, "DAT023", fmt::format("the pattern \"{}\" {}", pattern, what), where,
              "write the pattern without it; groups, lookaheads, \\p{...}, \\s \\d \\w, classes and quantifiers work");
}

std::string MessageOf(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// Oniguruma's classes by their letter: what stands inside [...]. Empty: the letter is no such class.
std::string_view MembersOf(char letter) {
  switch (letter) {
    case 's':
      return "\\t-\\r\\x{85}\\p{Z}";
    case 'w':
      return "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
    case 'h':
      return "0-9a-fA-F";
    default:
      return "";
  }
}

class Translation {
 public:
  Translation(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string Run() {
    while (at_ < pattern_.size()) Step();
    return std::move(out_);
  }

 private:
  void Step() {
    const char c = pattern_[at_];
    if (c == '\\') return Escape();
    if (in_class_) {
      InClass(c);
    } else if (c == '[') {
      in_class_ = true;
      class_begin_ = at_ + (Follows("^") ? 2 : 1);
    } else if ((c == '}' && Follows("+") && IsRange()) || (c == '{' && Follows(","))) {
      Refuse(pattern_, "holds {n,m}+ or {,n}, which the two engines read differently", where_);
    } else if (c == '(') {
      Group();
    }
    out_ += c;
    ++at_;
  }

  bool Follows(std::string_view text) const { return pattern_.substr(at_ + 1).starts_with(text); }

  void Group() const {
    if (Follows("*")) Refuse(pattern_, "holds a verb, (*...)", where_);
    if (!Follows("?")) return;
    const std::string_view rest = pattern_.substr(at_ + 2);
    const std::string_view options = rest.substr(0, rest.find_first_of(":)"));
    const bool only_letters = options.find_first_not_of("imsxnUJa-") == std::string_view::npos;
    if (only_letters && options.find_first_not_of("ix-") != std::string_view::npos)
      Refuse(pattern_, fmt::format("sets the options (?{})", options), where_);
  }

  // \p{Han} is a script in Oniguruma and "used with this script" in PCRE2, whose name for the former is sc:Han.
  void Property() {
    const size_t begin = at_ + 3, end = pattern_.find('}', at_);
    if (!pattern_.substr(at_ + 2).starts_with('{') || end == std::string_view::npos)
      Refuse(pattern_, "names a property without braces", where_);
    const bool negated = pattern_[begin] == '^';
    const std::string_view name = pattern_.substr(begin + negated, end - begin - negated);
    constexpr std::string_view kPlain[] = {
        "Any", "Alphabetic", "Uppercase", "Lowercase", "White_Space", "Emoji", "Extended_Pictographic", "Ideographic"};
    const bool plain = name.size() <= 2 || std::ranges::find(kPlain, name) != std::end(kPlain);
    out_ += fmt::format("\\{}{{{}{}{}}}", pattern_[at_ + 1], negated ? "^" : "", plain ? "" : "sc:", name);
    at_ = end + 1;
  }

  void InClass(char c) {
    if (c == '[') Refuse(pattern_, "holds a class inside a class", where_);
    if (c == '&' && Follows("&")) Refuse(pattern_, "intersects classes (&&)", where_);
    if (c == ']' && at_ > class_begin_) in_class_ = false;
    if (c == ']' && at_ == class_begin_) Refuse(pattern_, "has an empty class", where_);
  }

  void Escape() {
    if (at_ + 1 == pattern_.size()) Refuse(pattern_, "ends in a backslash", where_);
    const char letter = pattern_[at_ + 1];
    if (letter == 'p' || letter == 'P') return Property();
    const char small = static_cast<char>(letter | 0x20);
    const std::string_view members =
        std::string_view("SWH").find(letter) == std::string_view::npos ? MembersOf(letter) : MembersOf(small);
    if (members.empty()) {
      if (std::string_view("bBGKkgXRyYONzZAuQEcCMm").find(letter) != std::string_view::npos)
        Refuse(pattern_, fmt::format("uses \\{}", letter), where_);
      out_ += pattern_.substr(at_, 2);
    } else if (!in_class_) {
      out_ += fmt::format("[{}{}]", letter == small ? "" : "^", members);
    } else if (letter == small) {
      out_ += members;
    } else {
      if (letter != 'S') Refuse(pattern_, fmt::format("uses \\{} inside a class", letter), where_);
      out_ += "\\S";  // less U+180E, which PCRE2 counts as space
    }
    at_ += 2;
  }

  bool IsRange() const {
    const size_t open = pattern_.rfind('{', at_);
    if (open == std::string_view::npos) return false;
    return pattern_.substr(open + 1, at_ - open - 1).find_first_not_of("0123456789,") == std::string_view::npos;
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string out_;
  size_t at_ = 0, class_begin_ = 0;
  bool in_class_ = false;
};

}  // namespace

struct Matcher::Memory {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kFirstStackBytes, kLastStackBytes, nullptr);
  Memory() {
    TRIREME_CHECK(data && context && stack, "memory for matching");
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Memory() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

Matcher::Matcher() : memory_(std::make_unique<Memory>()) {}
Matcher::~Matcher() = default;
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;

struct Pattern::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  std::string text;
  Code() = default;
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

Pattern Pattern::Regex(std::string_view oniguruma, const std::string& where) {
  auto code = std::make_shared<Code>();
  code->text = oniguruma;
  const std::string pattern = TranslatePattern(oniguruma, where);
  int error = 0;
  PCRE2_SIZE place = 0;
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &place, nullptr);
  if (code->code == nullptr)
    Refuse(oniguruma,
           fmt::format("is not understood by PCRE2 at byte {} of \"{}\": {}", place, pattern, MessageOf(error)), where);
  uint32_t empty = 0;
  pcre2_pattern_info(code->code, PCRE2_INFO_MATCHEMPTY, &empty);
  if (empty != 0) Refuse(oniguruma, "matches the empty text", where);
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;  // slower without, on a machine that forbids it
  Pattern out;
  out.code_ = std::move(code);
  return out;
}

Pattern Pattern::Literal(std::string_view text, const std::string& where) {
  std::string pattern;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && std::string_view("\\^$.[]|()?*+{}&-").find(c) != std::string_view::npos)
      pattern += '\\';
    pattern += c;
  }
  return Regex(pattern, where);
}

bool Pattern::Find(std::string_view text, size_t from, Matcher& matcher, Match& match) const {
  const auto* bytes = reinterpret_cast<PCRE2_SPTR>(text.data());
  const Matcher::Memory& memory = *matcher.memory_;
  const int found =
      code_->jit
          ? pcre2_jit_match(code_->code, bytes, text.size(), from, PCRE2_NO_UTF_CHECK, memory.data, memory.context)
          : pcre2_match(code_->code, bytes, text.size(), from, PCRE2_NO_UTF_CHECK, memory.data, memory.context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    throw Error(ErrorCode::kData, "DAT024",
                fmt::format("the pattern \"{}\" gave up at byte {} of a text of {}: {}", code_->text, from, text.size(),
                            MessageOf(found)),
                "tokeniser", "break very long runs without spaces in the input");
  }
  const PCRE2_SIZE* places = pcre2_get_ovector_pointer(memory.data);
  match = {places[0], places[1]};
  return true;
}

std::string TranslatePattern(std::string_view oniguruma, const std::string& where) {
  return Translation(oniguruma, where).Run();
}

}  // namespace trireme::data
