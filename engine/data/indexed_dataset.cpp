#include "engine/data/indexed_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "engine/base/bytes.h"
#include "engine/data/parallel.h"

namespace trireme::data {
namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr int64_t kHeaderBytes = 34;
constexpr const char* kRebuild = "copy both files again, or tokenise the text again with `trireme data build`";

template <typename T>
T Load(const std::byte* at, int64_t index = 0) {
  T value;
  std::memcpy(&value, at + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Calls f with a value of the C++ type that `type` names.
template <typename F>
decltype(auto) WithType(TokenType type, F&& f) {
  switch (type) {
    case TokenType::kUInt8:
      return f(uint8_t{});
    case TokenType::kInt8:
      return f(int8_t{});
    case TokenType::kInt16:
      return f(int16_t{});
    case TokenType::kInt32:
      return f(int32_t{});
    case TokenType::kInt64:
      return f(int64_t{});
    case TokenType::kUInt16:
      return f(uint16_t{});
    case TokenType::kUInt32:
      return f(uint32_t{});
    case TokenType::kUInt64:
      return f(uint64_t{});
  }
  return f(int32_t{});
}

template <typename T>
int32_t ToInt32(T value) {
  if constexpr (sizeof(T) < 4 || std::is_same_v<T, int32_t>) {
    return static_cast<int32_t>(value);
  } else if constexpr (std::is_signed_v<T>) {
    return value < 0 ? -1 : static_cast<int32_t>(std::min<T>(value, std::numeric_limits<int32_t>::max()));
  } else {
    return static_cast<int32_t>(std::min<T>(value, std::numeric_limits<int32_t>::max()));
  }
}

std::filesystem::path Appended(std::filesystem::path prefix, const char* suffix) {
  prefix += suffix;
  return prefix;
}

MappedFile MapExisting(const std::filesystem::path& file, const std::filesystem::path& prefix) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) {
    throw Error(ErrorCode::kData, "DAT017", fmt::format("there is no token file {}", file.string()), prefix.string(),
                "give the path without .bin and .idx; `trireme data build` makes both files from text");
  }
  return MappedFile(file, ErrorCode::kData);
}

}  // namespace

std::filesystem::path PrefixOf(const std::filesystem::path& path) {
  const auto extension = path.extension();
  if (extension != ".bin" && extension != ".idx") return path;
  return std::filesystem::path(path).replace_extension();
}
std::filesystem::path BinPath(const std::filesystem::path& prefix) { return Appended(prefix, ".bin"); }
std::filesystem::path IdxPath(const std::filesystem::path& prefix) { return Appended(prefix, ".idx"); }

IndexedDataset::IndexedDataset(const std::filesystem::path& prefix, CodeTable codes)
    : prefix_(PrefixOf(prefix)),
      index_(MapExisting(IdxPath(prefix_), prefix_)),
      tokens_(MapExisting(BinPath(prefix_), prefix_)) {
  CheckHeader(codes);
  CheckIndexSize();
  lengths_ = index_.bytes().data() + kHeaderBytes;
  offsets_ = lengths_ + 4 * num_sequences_;
  documents_ = offsets_ + 8 * num_sequences_;
  CheckBinSize();
  CheckSequences();
  CheckDocuments();
}

void IndexedDataset::FailIndex(const std::string& what) const {
  throw Error(ErrorCode::kData, "DAT005", what, IdxPath(prefix_).string(), kRebuild);
}

void IndexedDataset::CheckHeader(CodeTable codes) {
  const auto bytes = index_.bytes();
  const std::string file = IdxPath(prefix_).string();
  const size_t compared = std::min(bytes.size(), sizeof kMagic);
  if (bytes.empty() || std::memcmp(bytes.data(), kMagic, compared) != 0) {
    throw Error(ErrorCode::kData, "DAT001", "this is not a Megatron index: it does not begin with MMIDIDX", file,
                "name the prefix of a .bin/.idx pair; `trireme data build` makes one from text");
  }
  if (bytes.size() < static_cast<size_t>(kHeaderBytes)) {
    throw Error(ErrorCode::kData, "DAT002",
                fmt::format("the index has {} bytes, its header alone needs {}", bytes.size(), kHeaderBytes), file,
                kRebuild);
  }
  const auto version = Load<uint64_t>(bytes.data() + 9);
  if (version != 1) {
    throw Error(ErrorCode::kData, "DAT001", fmt::format("the index has version {}; version 1 is known", version), file,
                "write it with a current Megatron-LM or with `trireme data build`");
  }
  const auto code = Load<uint8_t>(bytes.data() + 17);
  const auto type = FromCode(code, codes);
  if (!type) {
    throw Error(
        ErrorCode::kData, "DAT004",
        fmt::format(
            "token type code {} is not an integer type of {} (known: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, {})",
            code, codes == CodeTable::kMegatron ? "Megatron-LM" : "DeepSpeed",
            codes == CodeTable::kMegatron ? "8 uint16" : "6 uint16, 7 uint32, 8 uint64"),
        file,
        "a file made by DeepSpeed's data tools has other codes above 5: open it with DeepSpeed's table; else tokenise "
        "the text again");
  }
  type_ = *type;
  // The counts are checked against the file's size before they are multiplied, so no product can overflow.
  const auto limit = static_cast<uint64_t>(bytes.size());
  const auto sequences = Load<uint64_t>(bytes.data() + 18), entries = Load<uint64_t>(bytes.data() + 26);
  if (sequences > limit / 12 || entries > limit / 8) {
    throw Error(
        ErrorCode::kData, "DAT002",
        fmt::format("the index has {} bytes, too few for the {} sequences and {} document boundaries that it announces",
                    limit, sequences, entries),
        file, kRebuild);
  }
  num_sequences_ = static_cast<int64_t>(sequences);
  num_document_entries_ = static_cast<int64_t>(entries);
}

void IndexedDataset::CheckIndexSize() const {
  const int64_t found = static_cast<int64_t>(index_.bytes().size());
  const int64_t expected = kHeaderBytes + 12 * num_sequences_ + 8 * num_document_entries_;
  // Multimodal writers add one byte of mode per sequence.
  if (found == expected || found == expected + num_sequences_) return;
  throw Error(ErrorCode::kData, "DAT002",
              fmt::format("the index has {} bytes; {} sequences and {} document boundaries need {}", found,
                          num_sequences_, num_document_entries_, expected),
              IdxPath(prefix_).string(), kRebuild);
}

void IndexedDataset::CheckBinSize() {
  const int64_t found = static_cast<int64_t>(tokens_.bytes().size()), size = SizeOf(type_);
  int64_t expected = 0;
  if (num_sequences_ > 0) {
    const int64_t last = num_sequences_ - 1, offset = Load<int64_t>(offsets_, last),
                  length = Load<int32_t>(lengths_, last);
    if (offset < 0 || length < 0 || offset > std::numeric_limits<int64_t>::max() - length * size) {
      FailIndex(fmt::format("sequence {} has length {} and byte offset {}", last, length, offset));
    }
    expected = offset + length * size;
  }
  if (found != expected) {
    throw Error(
        ErrorCode::kData, "DAT003",
        fmt::format("the token file has {} bytes ({} tokens of {}); its index expects {} bytes ({} tokens), {} {}",
                    found, found / size, Name(type_), expected, expected / size,
                    FormatBytes(found < expected ? expected - found : found - expected),
                    found < expected ? "are missing" : "are too many"),
        BinPath(prefix_).string(), kRebuild);
  }
  num_tokens_ = found / size;
}

// Every offset must be the end of the sequence before it: with the file's size checked, no read can leave the map.
void IndexedDataset::CheckSequences() const {
  constexpr int64_t kParallelFrom = 1 << 20;
  const int64_t size = SizeOf(type_);
  if (num_sequences_ > 0 && Load<int64_t>(offsets_) != 0) {
    FailIndex(fmt::format("the first sequence begins at byte {}, not 0", Load<int64_t>(offsets_)));
  }
  const int threads = num_sequences_ >= kParallelFrom ? ResolveThreads(0) : 1;
  ParallelFor(num_sequences_, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t offset = Load<int64_t>(offsets_, i), length = Load<int32_t>(lengths_, i);
      const int64_t bytes = static_cast<int64_t>(tokens_.bytes().size());
      if (length < 0 || offset < 0 || offset > bytes) {
        FailIndex(fmt::format("sequence {} has length {} and byte offset {} in a token file of {} bytes", i, length,
                              offset, bytes));
      }
      const int64_t next = i + 1 < num_sequences_ ? Load<int64_t>(offsets_, i + 1) : bytes;
      if (offset + length * size != next) {
        FailIndex(fmt::format("sequence {} ends at byte {}, but the next begins at byte {}", i, offset + length * size,
                              next));
      }
    }
  });
}

void IndexedDataset::CheckDocuments() const {
  if (num_document_entries_ < 1) FailIndex("the index has no document boundaries");
  int64_t before = 0;
  for (int64_t i = 0; i < num_document_entries_; ++i) {
    const int64_t sequence = Load<int64_t>(documents_, i);
    if (sequence < before || (i == 0 && sequence != 0)) {
      FailIndex(fmt::format("document {} begins at sequence {} after {}", i, sequence, before));
    }
    before = sequence;
  }
  if (before != num_sequences_)
    FailIndex(fmt::format("the documents end at sequence {}, the index has {}", before, num_sequences_));
}

int64_t IndexedDataset::Length(int64_t sequence) const {
  TRIREME_CHECK(sequence >= 0 && sequence < num_sequences_, fmt::format("sequence {} of {}", sequence, num_sequences_));
  return Load<int32_t>(lengths_, sequence);
}

int64_t IndexedDataset::FirstToken(int64_t sequence) const {
  TRIREME_CHECK(sequence >= 0 && sequence <= num_sequences_,
                fmt::format("sequence {} of {}", sequence, num_sequences_));
  return sequence == num_sequences_ ? num_tokens_ : Load<int64_t>(offsets_, sequence) / SizeOf(type_);
}

int64_t IndexedDataset::FirstSequence(int64_t document) const {
  TRIREME_CHECK(document >= 0 && document < num_document_entries_,
                fmt::format("document {} of {}", document, num_document_entries_ - 1));
  return Load<int64_t>(documents_, document);
}

void IndexedDataset::Read(int64_t first_token, std::span<int32_t> out) const {
  const int64_t count = static_cast<int64_t>(out.size());
  TRIREME_CHECK(first_token >= 0 && count <= num_tokens_ && first_token <= num_tokens_ - count,
                fmt::format("tokens [{}, {}) of {}", first_token, first_token + count, num_tokens_));
  if (count == 0) return;
  WithType(type_, [&](auto kind) {
    using T = decltype(kind);
    const std::byte* from = tokens_.bytes().data() + first_token * static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] = ToInt32(Load<T>(from, i));
  });
}

int64_t IndexedDataset::TokenAt(int64_t token) const {
  TRIREME_CHECK(token >= 0 && token < num_tokens_, fmt::format("token {} of {}", token, num_tokens_));
  return WithType(type_,
                  [&](auto kind) { return static_cast<int64_t>(Load<decltype(kind)>(tokens_.bytes().data(), token)); });
}

TokenPlace IndexedDataset::Locate(int64_t token) const {
  TRIREME_CHECK(token >= 0 && token < num_tokens_, fmt::format("token {} of {}", token, num_tokens_));
  int64_t low = 0, high = num_documents();  // the last document that begins at or before the token
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (FirstToken(FirstSequence(middle)) <= token ? low : high) = middle;
  }
  return {low, token - FirstToken(FirstSequence(low))};
}

}  // namespace trireme::data
