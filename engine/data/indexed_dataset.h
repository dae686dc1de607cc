// Reads Megatron-LM's token files: PREFIX.bin (token ids, nothing else) and PREFIX.idx (lengths, offsets, documents).
//   IndexedDataset data("corpus/text");  std::vector<int32_t> ids(data.Length(7));  data.Read(data.FirstToken(7), ids);
// Both files are memory-mapped and nothing is decoded up front, but every size, offset and boundary is checked at open,
// so that a cut download is refused there and no later read leaves the map. Offsets are 64-bit. Tokens of consecutive
// sequences lie side by side, so one token position, counted from the start of the file, addresses everything.
// All members are const and safe to call from many threads. Ids outside int32 come out as INT32_MAX or -1 (both outside
// any vocabulary); TokenAt gives the exact value. Throws Error{kData}: docs/errors/data.md.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "engine/base/file.h"
#include "engine/data/token_type.h"

namespace trireme::data {

// Appends: "corpus/text" -> "corpus/text.bin". A prefix given with .bin or .idx at its end stands for the same dataset.
std::filesystem::path PrefixOf(const std::filesystem::path& path);
std::filesystem::path BinPath(const std::filesystem::path& prefix);
std::filesystem::path IdxPath(const std::filesystem::path& prefix);

struct TokenPlace {
  int64_t document;  // counted from 0
  int64_t position;  // token in that document, counted from 0
};

class IndexedDataset {
 public:
  explicit IndexedDataset(const std::filesystem::path& prefix, CodeTable codes = CodeTable::kMegatron);

  const std::filesystem::path& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_document_entries_ - 1; }
  int64_t num_tokens() const { return num_tokens_; }
  std::span<const std::byte> index_bytes() const { return index_.bytes(); }  // for a fingerprint

  int64_t Length(int64_t sequence) const;      // tokens
  int64_t FirstToken(int64_t sequence) const;  // token position; num_tokens() for sequence == num_sequences()
  int64_t FirstSequence(int64_t document) const;

  // Tokens [first_token, first_token + out.size()).
  void Read(int64_t first_token, std::span<int32_t> out) const;
  int64_t TokenAt(int64_t token) const;
  TokenPlace Locate(int64_t token) const;

 private:
  void CheckHeader(CodeTable codes);
  void CheckIndexSize() const;
  void CheckSequences() const;
  void CheckBinSize();
  void CheckDocuments() const;
  [[noreturn]] void FailIndex(const std::string& what) const;

  std::filesystem::path prefix_;
  MappedFile index_, tokens_;
  TokenType type_ = TokenType::kInt32;
  int64_t num_sequences_ = 0, num_document_entries_ = 0, num_tokens_ = 0;
  // Unaligned arrays inside the map (the header has 34 bytes): read with memcpy only.
  const std::byte* lengths_ = nullptr;    // int32[num_sequences_]
  const std::byte* offsets_ = nullptr;    // int64[num_sequences_], bytes
  const std::byte* documents_ = nullptr;  // int64[num_document_entries_], sequences
};

}  // namespace trireme::data
