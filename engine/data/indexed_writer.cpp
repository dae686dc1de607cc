#include "engine/data/indexed_writer.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "engine/base/file.h"
#include "engine/data/indexed_dataset.h"

namespace trireme::data {
namespace {

constexpr size_t kBufferBytes = 4 << 20;

[[noreturn]] void Fail(const std::filesystem::path& file, const char* action) {
  const int reason = errno;
  throw Error(ErrorCode::kData, "DAT019", fmt::format("{} failed: {}", action, std::strerror(reason)), file.string(),
              reason == ENOSPC || reason == EDQUOT ? "free space on this file system or choose another --output"
                                                   : "check the file system and its permissions");
}

template <typename T>
void Append(std::vector<std::byte>& out, const T* values, size_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values);
  out.insert(out.end(), bytes, bytes + count * sizeof(T));
}

void WriteAll(int descriptor, std::span<const std::byte> bytes, const std::filesystem::path& file) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) Fail(file, "writing");
    if (count > 0) bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void Rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) Fail(to, "renaming");
}

template <typename T>
void AppendTokens(std::vector<std::byte>& out, std::span<const int32_t> tokens) {
  const size_t at = out.size();
  out.resize(at + tokens.size() * sizeof(T));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const T value = static_cast<T>(tokens[i]);
    std::memcpy(out.data() + at + i * sizeof(T), &value, sizeof(T));
  }
}

std::filesystem::path Folder(const std::filesystem::path& prefix) {
  return prefix.has_parent_path() ? prefix.parent_path() : std::filesystem::path(".");
}

}  // namespace

IndexedWriter::IndexedWriter(const std::filesystem::path& prefix, TokenType type)
    : prefix_(PrefixOf(prefix)), type_(type) {
  MegatronCode(type);
  if (prefix_.filename().empty()) {
    throw Error(ErrorCode::kData, "DAT012", "the output is a folder, not a file prefix", prefix.string(),
                "name the files inside it, for example " + (prefix / "text").string());
  }
  if (!std::filesystem::is_directory(Folder(prefix_))) {
    throw Error(ErrorCode::kData, "DAT012", fmt::format("the folder {} does not exist", Folder(prefix_).string()),
                prefix_.string(),
                fmt::format("create it with `mkdir -p {}` or choose another --output", Folder(prefix_).string()));
  }
  temporary_ = BinPath(prefix_);
  temporary_ += ".tmp";
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) Fail(temporary_, "creating");
  buffer_.reserve(kBufferBytes + (1 << 20));
}

IndexedWriter::~IndexedWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void IndexedWriter::AddSequence(std::span<const int32_t> tokens) {
  TRIREME_CHECK(descriptor_ >= 0, "AddSequence after Finish");
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw Error(ErrorCode::kData, "DAT013",
                fmt::format("document {} has {} tokens; the format holds 2147483647", num_documents(), tokens.size()),
                prefix_.string(), "split the document");
  }
  const int64_t limit = MaxId(type_);
  for (const int32_t id : tokens) {
    if (id < 0 || id > limit) {
      throw Error(ErrorCode::kData, "DAT016",
                  fmt::format("token id {} does not fit into {} (0 to {})", id, Name(type_), limit), prefix_.string(),
                  "choose the token type by the vocabulary of the tokeniser");
    }
  }
  switch (SizeOf(type_)) {
    case 1:
      AppendTokens<uint8_t>(buffer_, tokens);
      break;
    case 2:
      AppendTokens<uint16_t>(buffer_, tokens);
      break;
    case 4:
      AppendTokens<int32_t>(buffer_, tokens);
      break;
    default:
      AppendTokens<int64_t>(buffer_, tokens);
      break;
  }
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  num_tokens_ += static_cast<int64_t>(tokens.size());
  if (buffer_.size() >= kBufferBytes) Flush();
}

void IndexedWriter::EndDocument() { documents_.push_back(num_sequences()); }

void IndexedWriter::Flush() {
  WriteAll(descriptor_, buffer_, temporary_);
  buffer_.clear();
}

void IndexedWriter::WriteIndex() const {
  std::vector<std::byte> out;
  out.reserve(34 + lengths_.size() * 12 + documents_.size() * 8);
  constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
  const uint64_t version = 1, sequences = lengths_.size(), entries = documents_.size();
  const uint8_t code = MegatronCode(type_);
  Append(out, kMagic, sizeof kMagic);
  Append(out, &version, 1);
  Append(out, &code, 1);
  Append(out, &sequences, 1);
  Append(out, &entries, 1);
  Append(out, lengths_.data(), lengths_.size());
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    Append(out, &offset, 1);
    offset += length * SizeOf(type_);
  }
  Append(out, documents_.data(), documents_.size());
  WriteFileDurably(IdxPath(prefix_), {reinterpret_cast<const char*>(out.data()), out.size()}, ErrorCode::kData);
}

void IndexedWriter::Finish() {
  TRIREME_CHECK(descriptor_ >= 0, "Finish was called before");
  TRIREME_CHECK(documents_.back() == num_sequences(), "the last document was not ended");
  Flush();
  if (::fsync(descriptor_) != 0) Fail(temporary_, "fsync");
  // From here to the new index there is no dataset of this name: a crash leaves none rather than a wrong pair.
  if (::unlink(IdxPath(prefix_).c_str()) != 0 && errno != ENOENT) Fail(IdxPath(prefix_), "removing the old index");
  Rename(temporary_, BinPath(prefix_));
  ::close(descriptor_);
  descriptor_ = -1;
  WriteIndex();
}

}  // namespace trireme::data
