// Tokens that are found in the text before it is cut into pieces: <|endoftext|>, <|im_start|> and those that users add.
//   AddedTokenMatcher matcher(tokens);
//   matcher.Split(text, [&](std::string_view between, const AddedToken* token) { ... });
// Leftmost, and of those that begin at one place the longest, as `tokenizers` matches them; so are the rules of
// single_word (no word character beside it), lstrip and rstrip (white space beside it belongs to the token).
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/bpe/pattern.h"

namespace trireme::data {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false, lstrip = false, rstrip = false;
  bool normalized = true;  // looked for in the normalised text, by its normalised content
  bool special = false;
};

class AddedTokenMatcher {
 public:
  // Looks for `texts[i]`, which stands for `tokens[i]`. Texts are not empty; of equal texts the last counts.
  AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& texts);

  bool empty() const { return tokens_.empty(); }

  // Calls part(text, nullptr) for what lies between tokens, if anything does, and part(text, token) for each token.
  void Split(std::string_view text, const std::function<void(std::string_view, const AddedToken*)>& part) const;

 private:
  struct Node {
    std::map<unsigned char, int32_t> next;
    int32_t token = -1;
  };
  // The longest token at `at`: its index, or -1; `length` is that of its text.
  int32_t Longest(std::string_view text, size_t at, size_t& length) const;
  bool StandsAlone(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_ = {Node{}};
  std::array<bool, 256> begins_{};
  Pattern word_;  // one word character
};

}  // namespace trireme::data
