// Text <-> token ids.
//   auto tokenizer = MakeTokenizer("byte");  std::vector<int32_t> ids;  tokenizer->Encode("In the beginning", ids);
// PREFIX.tokenizer.json beside a dataset says which tokeniser made it, so that `generate` can decode and `train` can
// compare vocabularies: {"format": 1, "tokenizer": "byte", "vocab_size": 257, "eod_id": 256}. The byte tokeniser: ids
// 0..255 are the bytes of the text, 256 ends a document, vocabulary 257. It needs no files and any text round-trips.
// All members are const and safe to call from many threads.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string_view name() const = 0;
  virtual int64_t vocab_size() const = 0;  // ids are 0 .. vocab_size - 1, the end of document included
  virtual int32_t eod_id() const = 0;
  virtual void Encode(std::string_view text, std::vector<int32_t>& ids) const = 0;  // appends; adds no end of document
  // The end of document becomes an empty line, as in the input format. Throws Error{kData, DAT006} on an id outside the
  // vocabulary.
  virtual std::string Decode(std::span<const int32_t> ids) const = 0;
};

// Throws Error{kUsage, DAT014} naming the known ones.
std::unique_ptr<Tokenizer> MakeTokenizer(std::string_view name);

std::filesystem::path TokenizerPath(const std::filesystem::path& prefix);
void SaveTokenizer(const Tokenizer& tokenizer, const std::filesystem::path& prefix);
// nullptr if PREFIX.tokenizer.json does not exist (a dataset from elsewhere). Throws Error{kData, DAT014} if it is
// damaged.
std::unique_ptr<Tokenizer> LoadTokenizer(const std::filesystem::path& prefix);

}  // namespace trireme::data
