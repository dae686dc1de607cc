#include "engine/data/bpe/added_tokens.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/data/bpe/unicode.h"

namespace trireme::data {
namespace {

constexpr const char* kWord = "[\\w\\x{200c}\\x{200d}]";  // the joiners count as word characters there

size_t SpacesBefore(std::string_view text) {  // where the white space at the end begins
  size_t begin = text.size();
  while (begin > 0) {
    size_t start = begin - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    size_t at = start;
    if (!IsSpace(TakeChar(text, at))) break;
    begin = start;
  }
  return begin;
}

size_t SpacesAfter(std::string_view text) {  // bytes of white space at the front
  size_t end = 0;
  for (size_t at = 0; at < text.size(); end = at) {
    if (!IsSpace(TakeChar(text, at))) break;
  }
  return end;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& texts)
    : tokens_(std::move(tokens)), word_(Pattern::Regex(kWord, "added tokens")) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    TRIREME_CHECK(!texts[i].empty(), "an empty added token");
    int32_t node = 0;
    for (const char c : texts[i]) {
      const auto byte = static_cast<unsigned char>(c);
      auto found = nodes_[static_cast<size_t>(node)].next.find(byte);
      if (found == nodes_[static_cast<size_t>(node)].next.end()) {
        const auto fresh = static_cast<int32_t>(nodes_.size());
        nodes_.emplace_back();
        nodes_[static_cast<size_t>(node)].next[byte] = fresh;
        node = fresh;
      } else {
        node = found->second;
      }
    }
    nodes_[static_cast<size_t>(node)].token = static_cast<int32_t>(i);
    begins_[static_cast<unsigned char>(texts[i].front())] = true;
  }
}

int32_t AddedTokenMatcher::Longest(std::string_view text, size_t at, size_t& length) const {
  int32_t found = -1;
  const Node* node = &nodes_[0];
  for (size_t i = at; i < text.size(); ++i) {
    const auto next = node->next.find(static_cast<unsigned char>(text[i]));
    if (next == node->next.end()) break;
    node = &nodes_[static_cast<size_t>(next->second)];
    if (node->token >= 0) {
      found = node->token;
      length = i + 1 - at;
    }
  }
  return found;
}

bool AddedTokenMatcher::StandsAlone(std::string_view text, size_t begin, size_t end) const {
  Matcher memory;
  Match match;
  size_t start = begin;
  if (start > 0) --start;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  if (begin > 0 && word_.Find(text.substr(start, begin - start), 0, memory, match)) return false;
  if (end == text.size()) return true;
  size_t after = end;
  TakeChar(text, after);
  return !word_.Find(text.substr(end, after - end), 0, memory, match);
}

void AddedTokenMatcher::Split(std::string_view text,
                              const std::function<void(std::string_view, const AddedToken*)>& part) const {
  size_t done = 0;  // everything before was handed out
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    const int32_t index = begins_[static_cast<unsigned char>(text[at])] ? Longest(text, at, length) : -1;
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = at, end = at + length;
    at = end;  // the next match lies behind this one, whether it counts or not
    if (token.single_word && !StandsAlone(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(SpacesBefore(text.substr(0, begin)), done);
    if (token.rstrip) end += SpacesAfter(text.substr(end));
    if (done < begin) part(text.substr(done, begin - done), nullptr);
    part(text.substr(begin, end - begin), &token);
    done = end;
  }
  if (done < text.size()) part(text.substr(done), nullptr);
}

}  // namespace trireme::data
