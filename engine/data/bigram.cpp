#include "engine/data/bigram.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "engine/base/error.h"

namespace trireme::data {
namespace {

// Counts of pairs: a table for small vocabularies, a hash map for large ones.
class PairCounts {
 public:
  explicit PairCounts(int64_t vocab_size) : vocab_size_(vocab_size), first_(static_cast<size_t>(vocab_size)) {
    constexpr int64_t kLargestTable = 4096;  // 64 MiB
    if (vocab_size <= kLargestTable) table_.resize(static_cast<size_t>(vocab_size * vocab_size));
  }

  void Add(int32_t a, int32_t b) {
    ++first_[static_cast<size_t>(a)];
    if (table_.empty()) {
      ++map_[Key(a, b)];
    } else {
      ++table_[Key(a, b)];
    }
  }

  double NegativeLogLikelihood(int32_t a, int32_t b) const {
    uint32_t pairs = 0;
    if (!table_.empty()) {
      pairs = table_[Key(a, b)];
    } else if (const auto found = map_.find(Key(a, b)); found != map_.end()) {
      pairs = found->second;
    }
    return std::log(static_cast<double>(first_[static_cast<size_t>(a)]) + static_cast<double>(vocab_size_)) -
           std::log(pairs + 1.0);
  }

 private:
  size_t Key(int32_t a, int32_t b) const {
    return static_cast<size_t>(a) * static_cast<size_t>(vocab_size_) + static_cast<size_t>(b);
  }

  int64_t vocab_size_;
  std::vector<int64_t> first_;
  std::vector<uint32_t> table_;
  std::unordered_map<size_t, uint32_t> map_;
};

// Calls f(a, b) for neighbouring tokens of [first, first + count).
template <typename F>
void ForEachPair(const IndexedDataset& data, int64_t first, int64_t count, int64_t vocab_size, F&& f) {
  constexpr int64_t kChunk = 1 << 16;
  std::vector<int32_t> tokens;
  for (int64_t done = 0; done + 1 < count; done += kChunk) {  // chunks overlap by one token
    tokens.resize(static_cast<size_t>(std::min(kChunk + 1, count - done)));
    data.Read(first + done, tokens);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocab_size) {
        const int64_t token = first + done + static_cast<int64_t>(i);
        const TokenPlace place = data.Locate(token);
        throw Error(ErrorCode::kData, "DAT006",
                    fmt::format("document {}, position {}: token id {} is outside the vocabulary of {}", place.document,
                                place.position, data.TokenAt(token), vocab_size),
                    BinPath(data.prefix()).string(), "give the tokeniser's --vocab-size");
      }
      if (i > 0) f(tokens[i - 1], tokens[i]);
    }
  }
}

[[noreturn]] void FailSmall(const IndexedDataset& data, const char* part, SplitRange range, int64_t tokens,
                            int64_t needed) {
  throw Error(ErrorCode::kData, "DAT008",
              fmt::format("the {} part, sequences [{}, {}) of {}, holds {} tokens; {} are needed", part, range.begin,
                          range.end, data.num_sequences(), tokens, needed),
              BinPath(data.prefix()).string(),
              "give this part of --split more weight, shorten --seq-length, or use more text");
}

}  // namespace

BigramResult HeldOutBigram(const IndexedDataset& data, SplitRange train, SplitRange held_out, int64_t vocab_size,
                           int64_t seq_length) {
  const auto tokens_of = [&](SplitRange range) { return data.FirstToken(range.end) - data.FirstToken(range.begin); };
  BigramResult result{.train_tokens = tokens_of(train)};
  if (result.train_tokens < 2) FailSmall(data, "training", train, result.train_tokens, 2);
  const int64_t sample = std::max<int64_t>(seq_length, 1);
  result.predicted_tokens = (tokens_of(held_out) - 1) / sample * sample;
  if (result.predicted_tokens < 1) FailSmall(data, "held-out", held_out, tokens_of(held_out), sample + 1);

  PairCounts counts(vocab_size);
  ForEachPair(data, data.FirstToken(train.begin), result.train_tokens, vocab_size,
              [&](int32_t a, int32_t b) { counts.Add(a, b); });
  double sum = 0;
  ForEachPair(data, data.FirstToken(held_out.begin), result.predicted_tokens + 1, vocab_size,
              [&](int32_t a, int32_t b) { sum += counts.NegativeLogLikelihood(a, b); });
  result.loss = sum / static_cast<double>(result.predicted_tokens);
  return result;
}

}  // namespace trireme::data
