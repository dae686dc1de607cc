// The byte-level byte-pair tokeniser behind engine/data/tokenizer.h.
//   auto tokenizer = MakeBpeTokenizer(ReadFile("tokenizer.json", ErrorCode::kData), {.where = "tokenizer.json"});
// Ids equal those of the `tokenizers` package without special tokens around the text. Bytes that are no UTF-8, which
// that package cannot be given, become the tokens of the single bytes: any text round-trips, but for what the
// normaliser changes. Throws Error{kData}: DAT022, DAT023, DAT025 (no end of document).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/data/tokenizer.h"

namespace trireme::data {

struct BpeOptions {
  std::string where = "";  // the file, for messages
  // The token that ends a document, by its text. "": the first of `eod_candidates` that the vocabulary has.
  std::string eod_token = "";
  std::vector<std::string> eod_candidates = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                                             "<|end▁of▁sentence|>"};
};

std::unique_ptr<Tokenizer> MakeBpeTokenizer(std::string tokenizer_json, const BpeOptions& options);

}  // namespace trireme::data
