// Writes Megatron-LM's token files as a stream, so that a dataset may be larger than memory.
//   IndexedWriter writer("corpus/text", TokenTypeForVocab(257));
//   writer.AddSequence(ids);  writer.EndDocument();  ...  writer.Finish();
// Tokens go to PREFIX.bin.tmp; Finish syncs, removes an older PREFIX.idx, moves the tokens into place and commits
// PREFIX.idx last, so a reader never sees an index without its tokens. Without Finish the destructor removes the
// temporary file and an older dataset of that name stays as it was. Not for use from several threads at once. Throws
// Error{kData}: DAT012 (output folder), DAT016 (id too large), DAT019 (writing).
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "engine/data/token_type.h"

namespace trireme::data {

class IndexedWriter {
 public:
  IndexedWriter(const std::filesystem::path& prefix, TokenType type);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  void AddSequence(std::span<const int32_t> tokens);  // ids from 0 to MaxId(type)
  void EndDocument();  // closes the sequences since the last call; none makes an empty document
  void Finish();

  int64_t num_sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_documents() const { return static_cast<int64_t>(documents_.size()) - 1; }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  void Flush();
  void WriteIndex() const;

  std::filesystem::path prefix_, temporary_;
  TokenType type_;
  int descriptor_ = -1;
  std::vector<std::byte> buffer_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> documents_ = {0};
  int64_t num_tokens_ = 0;
};

}  // namespace trireme::data
