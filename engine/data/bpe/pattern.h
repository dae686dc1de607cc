// Patterns of pre-tokenisers: what `tokenizers` hands to Oniguruma (Ruby's syntax), run by PCRE2 with its compiler.
//   const Pattern pattern = Pattern::Regex(R"( ?\p{L}+|\s+)", "tokenizer.json");
//   Matcher matcher;  while (pattern.Find(text, from, matcher, match)) from = match.end;
// Where the two differ in meaning, the pattern is rewritten (\s is exactly White_Space, \w holds all marks, \h is a hex
// digit, ^ and $ are ends of lines); what cannot be said in PCRE2 is refused by name. Both know Unicode's properties;
// the tables are those of the installed PCRE2 (10.42: Unicode 14), so characters assigned later may split differently.
// A Pattern may be used by many threads, a Matcher by one. Throws Error{kData}: DAT023 (not supported), DAT024 (gave
// up).
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::data {

struct Match {
  size_t begin = 0, end = 0;  // bytes
};

class Matcher {  // memory of one thread's searches
 public:
  Matcher();
  ~Matcher();
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;

 private:
  friend class Pattern;
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

class Pattern {
 public:
  // `where` names the file for messages. Patterns that match the empty text are refused.
  static Pattern Regex(std::string_view oniguruma, const std::string& where);
  static Pattern Literal(std::string_view text, const std::string& where);

  // The first match at or after `from`. `text` must be valid UTF-8.
  bool Find(std::string_view text, size_t from, Matcher& matcher, Match& match) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

// The same pattern in PCRE2's syntax.
std::string TranslatePattern(std::string_view oniguruma, const std::string& where);

}  // namespace trireme::data
