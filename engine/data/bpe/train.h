// Learns a byte-level byte-pair vocabulary from text files: what `trireme data train-tokenizer` does.
//   std::string json = TrainTokenizer({.inputs = {"a.txt"}, .vocab_size = 32000, .family = "gpt2"}, progress);
// Documents are those of `trireme data build`; each is normalised and cut by the family's rules, the pieces are counted
// by several threads, and the most frequent pair of neighbours is joined until the vocabulary is full; of equally
// frequent pairs that of the smaller ids. The result does not depend on the number of threads. It equals that of
// BpeTrainer of `tokenizers` 0.23 (initial_alphabet of all bytes) on the same documents, whose counts end at 2^31 - 1;
// invalid UTF-8 is left out of the counts. Throws Error{kData}: DAT010, DAT011, DAT017, DAT024; Error{kUsage}: DAT026.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/data/build.h"

namespace trireme::data {

struct TrainTokenizerOptions {
  std::vector<std::filesystem::path> inputs;
  TextFormat format = TextFormat::kText;
  std::string json_key = "text";
  int64_t vocab_size = 0;  // special tokens, 256 bytes and merges together
  std::string family = "gpt2";
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // ids 0, 1, ...
  int64_t min_frequency = 0;                                    // pairs seen less often are not joined
  int workers = 0;                                              // 0: as many as the machine has
  int64_t block_bytes = 4 << 20;                                // unit of work
};

enum class TrainPhase { kCounting, kMerging };

// The text of a tokenizer.json. progress(phase, done, total) comes from the calling thread: bytes of input, then tokens
// of the vocabulary.
std::string TrainTokenizer(const TrainTokenizerOptions& options,
                           const std::function<void(TrainPhase, int64_t, int64_t)>& progress);

}  // namespace trireme::data
