#include "engine/data/bpe/train.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <compare>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "engine/data/bpe/tokenizer_json.h"
#include "engine/data/parallel.h"
#include "engine/data/text_blocks.h"

namespace trireme::data {
namespace {

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return PieceTable::Hash(text); }
};
using WordCounts = std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>>;
using Pair = uint64_t;  // smaller ids, smaller pair

Pair PairOf(int32_t left, int32_t right) { return static_cast<Pair>(left) << 32 | static_cast<uint32_t>(right); }

// ---- counting -------------------------------------------------------------------------------------------------------

class WordCounter {
 public:
  explicit WordCounter(const BpeDefinition& rules) : rules_(rules), cutter_(rules.steps), memory_(cutter_) {}

  void Count(std::string_view document) {
    while (!document.empty()) {
      const size_t valid = ValidUtf8Prefix(document);
      std::string_view text = document.substr(0, valid);
      for (size_t i = 0; i < rules_.normalizers.size(); ++i)
        text = Normalize(text, rules_.normalizers[i], scratch_[i % 2]);
      cutter_.Cut(text, memory_, [&](std::string_view piece) {
        const auto found = counts_.find(piece);
        if (found != counts_.end()) {
          ++found->second;
        } else {
          counts_.emplace(piece, 1);
        }
      });
      document.remove_prefix(valid);
      document.remove_prefix(InvalidUtf8Prefix(document));
    }
  }
  WordCounts& counts() { return counts_; }

 private:
  const BpeDefinition& rules_;
  PreTokenizer cutter_;
  PreTokenizer::Memory memory_;
  std::array<std::string, 2> scratch_;
  WordCounts counts_;
};

std::vector<std::pair<std::string, int64_t>> CountWords(
    const TrainTokenizerOptions& options, const BpeDefinition& rules,
    const std::function<void(TrainPhase, int64_t, int64_t)>& progress) {
  const InputText input = OpenInputs(options.inputs, options.format, options.block_bytes);
  const int64_t workers =
      std::clamp<int64_t>(ResolveThreads(options.workers), 1, std::max<int64_t>(1, std::ssize(input.blocks)));
  std::vector<WordCounts> parts(static_cast<size_t>(workers));
  std::atomic<size_t> next = 0;
  std::atomic<int64_t> done = 0;
  ParallelFor(workers, static_cast<int>(workers), [&](int64_t worker, int64_t) {
    WordCounter counter(rules);
    for (size_t i; (i = next++) < input.blocks.size();) {
      ForEachDocument(input.blocks[i], options.format, options.json_key,
                      [&](std::string_view document) { counter.Count(document); });
      done += static_cast<int64_t>(input.blocks[i].text.size());
      if (worker == 0) progress(TrainPhase::kCounting, done, input.bytes);
    }
    parts[static_cast<size_t>(worker)] = std::move(counter.counts());
  });
  progress(TrainPhase::kCounting, input.bytes, input.bytes);
  for (size_t i = 1; i < parts.size(); ++i) {
    for (const auto& [word, count] : parts[i]) parts[0][word] += count;
    parts[i].clear();
  }
  std::vector<std::pair<std::string, int64_t>> words(parts[0].begin(), parts[0].end());
  std::ranges::sort(words);
  return words;
}

// ---- merging --------------------------------------------------------------------------------------------------------

// The queue of `tokenizers`' BpeTrainer, entry for entry. An entry knows the words in which its pair was new when it
// was pushed; its count may have changed since, then it is pushed again. A pair that comes about again through a token
// that two merges make has a second entry, and may so be joined twice: kept, since the ids follow from it.
class Merger {
 public:
  Merger(const std::vector<std::pair<std::string, int64_t>>& words, const std::vector<std::string>& special_tokens) {
    for (const std::string& token : special_tokens) Token(token);
    std::array<int32_t, 256> ids{};
    std::vector<uint32_t> symbols(ByteSymbols().begin(), ByteSymbols().end());
    std::ranges::sort(symbols);
    for (const uint32_t symbol : symbols) {
      std::string text;
      AppendChar(text, symbol);
      ids[static_cast<unsigned char>(BytesOfSymbols(text)->front())] = Token(text);
    }
    for (const auto& [word, count] : words) {
      const auto index = static_cast<uint32_t>(words_.size());
      words_.push_back({symbols_.size(), word.size(), count});
      for (const char c : word) symbols_.push_back(ids[static_cast<unsigned char>(c)]);
      for (size_t i = 1; i < word.size(); ++i)
        Change(PairOf(symbols_[symbols_.size() - word.size() + i - 1], symbols_[symbols_.size() - word.size() + i]), 1,
               index);
    }
    PushFresh();
  }

  void Run(int64_t vocab_size, int64_t min_frequency, const std::function<void(int64_t)>& progress) {
    while (std::ssize(tokens_) < vocab_size && !queue_.empty()) {
      std::ranges::pop_heap(queue_);
      Entry top = std::move(queue_.back());
      queue_.pop_back();
      const int64_t now = counts_[top.pair];
      if (top.count != now) {
        top.count = now;
        Push(std::move(top));
        continue;
      }
      if (top.count < 1 || top.count < min_frequency) break;
      const auto left = static_cast<int32_t>(top.pair >> 32), right = static_cast<int32_t>(top.pair & 0xFFFFFFFF);
      const int32_t joined = Token(tokens_[static_cast<size_t>(left)] + tokens_[static_cast<size_t>(right)]);
      merges_.emplace_back(left, right);
      for (const uint32_t word : top.words) Join(word, left, right, joined);
      PushFresh();
      progress(std::ssize(tokens_));
    }
  }

  const std::vector<std::string>& tokens() const { return tokens_; }
  std::vector<std::pair<std::string, std::string>> Merges() const {
    std::vector<std::pair<std::string, std::string>> out;
    std::unordered_map<Pair, size_t> last;  // of a pair joined twice only the later merge is kept
    for (size_t i = 0; i < merges_.size(); ++i) last[PairOf(merges_[i].first, merges_[i].second)] = i;
    for (size_t i = 0; i < merges_.size(); ++i) {
      const auto [left, right] = merges_[i];
      if (last[PairOf(left, right)] == i)
        out.emplace_back(tokens_[static_cast<size_t>(left)], tokens_[static_cast<size_t>(right)]);
    }
    return out;
  }

 private:
  struct Word {
    size_t begin, size;  // in symbols_
    int64_t count;
  };
  struct Entry {
    int64_t count = 0;
    Pair pair = 0;
    std::vector<uint32_t> words;
    bool operator==(const Entry& other) const = default;
    std::weak_ordering operator<=>(const Entry& other) const {
      return count != other.count ? count <=> other.count : other.pair <=> pair;
    }
  };

  int32_t Token(const std::string& text) {
    const auto [found, fresh] = ids_.emplace(text, static_cast<int32_t>(tokens_.size()));
    if (fresh) tokens_.push_back(text);
    return found->second;
  }

  void Change(Pair pair, int64_t sign, uint32_t word) {
    counts_[pair] += sign * words_[word].count;
    if (sign < 0) return;
    std::vector<uint32_t>& words = fresh_[pair];
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  void Push(Entry entry) {
    queue_.push_back(std::move(entry));
    std::ranges::push_heap(queue_);
  }

  void PushFresh() {
    for (auto& [pair, words] : fresh_) {
      if (const int64_t count = counts_[pair]; count > 0) Push({count, pair, std::move(words)});
    }
    fresh_.clear();
  }

  void Join(uint32_t index, int32_t left, int32_t right, int32_t joined) {
    Word& word = words_[index];
    int32_t* symbols = symbols_.data() + word.begin;
    size_t out = 0;
    for (size_t i = 0; i < word.size; ++i, ++out) {
      if (symbols[i] != left || i + 1 == word.size || symbols[i + 1] != right) {
        symbols[out] = symbols[i];
        continue;
      }
      if (out > 0) {
        Change(PairOf(symbols[out - 1], left), -1, index);
        Change(PairOf(symbols[out - 1], joined), 1, index);
      }
      if (i + 2 < word.size) {
        Change(PairOf(right, symbols[i + 2]), -1, index);
        Change(PairOf(joined, symbols[i + 2]), 1, index);
      }
      symbols[out] = joined;
      ++i;
    }
    word.size = out;
  }

  std::vector<std::string> tokens_;  // in symbols
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<std::pair<int32_t, int32_t>> merges_;
  std::vector<int32_t> symbols_;
  std::vector<Word> words_;
  std::unordered_map<Pair, int64_t> counts_;
  std::unordered_map<Pair, std::vector<uint32_t>> fresh_;
  std::vector<Entry> queue_;  // a heap
};

void CheckOptions(const TrainTokenizerOptions& options) {
  const auto fail = [](const std::string& what, const std::string& where, const std::string& fix) {
    throw Error(ErrorCode::kUsage, "DAT026", what, where, fix);
  };
  if (std::ranges::find(FamilyNames(), options.family) == FamilyNames().end())
    fail(fmt::format("there is no pattern \"{}\"", options.family), "--pattern", "known: " + Join(FamilyNames(), ", "));
  const int64_t least = 256 + std::ssize(options.special_tokens);
  if (options.vocab_size < least || options.vocab_size > 1 << 24)
    fail(fmt::format("a vocabulary of {} is not possible: 256 bytes and {} special tokens are {}, the most is {}",
                     options.vocab_size, options.special_tokens.size(), least, 1 << 24),
         "--vocab-size", fmt::format("pass at least {}", least));
  for (const std::string& token : options.special_tokens) {
    if (std::ranges::count(options.special_tokens, token) > 1)
      fail(fmt::format("the special token \"{}\" is given twice", token), "--special-tokens", "give it once");
    if (token.empty() || ValidUtf8Prefix(token) != token.size())
      fail("a special token is empty or no UTF-8", "--special-tokens", "write it as text, for example <|endoftext|>");
  }
}

}  // namespace

std::string TrainTokenizer(const TrainTokenizerOptions& options,
                           const std::function<void(TrainPhase, int64_t, int64_t)>& progress) {
  CheckOptions(options);
  nlohmann::ordered_json family = FamilyJson(options.family);
  BpeDefinition rules;
  ReadCutting(nlohmann::json::parse(family.dump()), options.family, rules);
  const auto words = CountWords(options, rules, progress);
  if (words.empty())
    throw Error(ErrorCode::kData, "DAT010", "the input has no text", options.inputs.front().string(),
                "give files with text; with --format jsonl every line needs a field \"text\"");
  Merger merger(words, options.special_tokens);
  merger.Run(options.vocab_size, options.min_frequency,
             [&](int64_t size) { progress(TrainPhase::kMerging, size, options.vocab_size); });
  std::vector<std::pair<std::string, int64_t>> vocabulary;
  for (const std::string& token : merger.tokens()) vocabulary.emplace_back(token, std::ssize(vocabulary));
  for (size_t i = 0; i < options.special_tokens.size(); ++i)
    family["added_tokens"].push_back(SpecialTokenJson(options.special_tokens[i], static_cast<int64_t>(i)));
  return TokenizerText(family, vocabulary, merger.Merges());
}

}  // namespace trireme::data
