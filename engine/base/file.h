// Files: whole reads, memory maps, durable writes.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/error.h"

namespace trireme {

// Whole file as text. Throws Error{code, FIL001} with the system's reason.
std::string ReadFile(const std::filesystem::path& path, ErrorCode code);

// Writes to a temporary name beside `path`, fsyncs, renames over it, fsyncs the folder. Throws Error{code, FIL002}.
void WriteFileDurably(const std::filesystem::path& path, std::string_view text, ErrorCode code);

// fsync of a file or folder. Throws Error{code, FIL002}.
void SyncPath(const std::filesystem::path& path, ErrorCode code);

// A read-only memory map of a whole file; an empty file maps to an empty span.
class MappedFile {
 public:
  MappedFile(const std::filesystem::path& path, ErrorCode code);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace trireme
