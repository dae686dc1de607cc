#include "engine/data/bpe/pre_tokenizer.h"

#include <algorithm>

namespace trireme::data {

void PreTokenizer::Gather(const SplitStep& split, std::string_view text, Memory::Step& memory) {
  using Piece = Memory::Piece;
  std::vector<Piece> parts;  // matches and what lies between them, in turn
  size_t at = 0;
  for (Match match; split.pattern.Find(text, at, memory.matcher, match); at = match.end) {
    if (at < match.begin) parts.push_back({at, match.begin, split.invert});
    parts.push_back({match.begin, match.end, !split.invert});
  }
  if (at < text.size()) parts.push_back({at, text.size(), split.invert});

  std::vector<Piece>& out = memory.pieces;
  out.clear();
  if (split.behaviour == Behaviour::kContiguous) {
    for (const Piece& part : parts) {
      if (!out.empty() && out.back().match == part.match) {
        out.back().end = part.end;
      } else {
        out.push_back(part);
      }
    }
    return;
  }
  // Of several matches in a row only the one nearest to its neighbour joins it.
  const bool to_next = split.behaviour == Behaviour::kMergedWithNext;
  if (to_next) std::ranges::reverse(parts);
  bool after_match = false;
  for (const Piece& part : parts) {
    if (part.match && !after_match && !out.empty()) {
      (to_next ? out.back().begin : out.back().end) = to_next ? part.begin : part.end;
    } else {
      out.push_back(part);
    }
    after_match = part.match;
  }
  if (to_next) std::ranges::reverse(out);
}

}  // namespace trireme::data
