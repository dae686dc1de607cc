// Cuts text into the pieces that a byte-pair model works on: a chain of steps, each on the pieces of the one before.
//   PreTokenizer cutter({SplitStep{pattern, Behaviour::kIsolated}});
//   PreTokenizer::Memory memory(cutter);  cutter.Cut(text, memory, [&](std::string_view piece) { ... });
// The behaviours are those of `tokenizers`; pieces are never empty. A PreTokenizer may be used by many threads, a
// Memory by one. Throws Error{kData, DAT024}: a pattern gave up.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/data/bpe/pattern.h"

namespace trireme::data {

enum class Behaviour : uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitStep {
  Pattern pattern;
  Behaviour behaviour = Behaviour::kIsolated;
  bool invert = false;  // what does not match counts as the match
};
struct PrefixSpaceStep {};  // a piece that does not begin with a space gets one in front
using CutStep = std::variant<SplitStep, PrefixSpaceStep>;

class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<CutStep> steps) : steps_(std::move(steps)) {}

  class Memory {
   public:
    explicit Memory(const PreTokenizer& cutter) : steps_(cutter.steps_.size()) {}

   private:
    friend class PreTokenizer;
    struct Piece {
      size_t begin = 0, end = 0;
      bool match = false;
    };
    struct Step {
      Matcher matcher;
      std::string text;
      std::vector<Piece> pieces;
    };
    std::vector<Step> steps_;
  };

  // text: valid UTF-8. Calls piece(view) in order; a view lives until the call returns.
  template <typename F>
  void Cut(std::string_view text, Memory& memory, F&& piece) const {
    CutFrom(0, text, memory, piece);
  }

 private:
  template <typename F>
  void CutFrom(size_t index, std::string_view text, Memory& memory, F& piece) const {
    if (text.empty()) return;
    if (index == steps_.size()) return piece(text);
    Memory::Step& own = memory.steps_[index];
    if (std::holds_alternative<PrefixSpaceStep>(steps_[index])) {
      if (text.starts_with(' ')) return CutFrom(index + 1, text, memory, piece);
      own.text.assign(1, ' ').append(text);
      return CutFrom(index + 1, own.text, memory, piece);
    }
    const SplitStep& split = std::get<SplitStep>(steps_[index]);
    const auto next = [&](size_t begin, size_t end) {
      if (begin < end) CutFrom(index + 1, text.substr(begin, end - begin), memory, piece);
    };
    if (split.behaviour != Behaviour::kIsolated && split.behaviour != Behaviour::kRemoved) {
      Gather(split, text, own);
      for (const Memory::Piece& part : own.pieces) next(part.begin, part.end);
      return;
    }
    const bool keep_matches = split.behaviour == Behaviour::kIsolated || split.invert;
    const bool keep_others = split.behaviour == Behaviour::kIsolated || !split.invert;
    size_t at = 0;
    for (Match match; split.pattern.Find(text, at, own.matcher, match); at = match.end) {
      if (keep_others) next(at, match.begin);
      if (keep_matches) next(match.begin, match.end);
    }
    if (keep_others) next(at, text.size());
  }

  // The pieces of the merging behaviours.
  static void Gather(const SplitStep& split, std::string_view text, Memory::Step& memory);

  std::vector<CutStep> steps_;
};

}  // namespace trireme::data
