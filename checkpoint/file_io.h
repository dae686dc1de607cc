// File descriptors with every return value checked, and the hashes of this room.
// Errors: CKP013 (no space, quota, size limit) and CKP014 (any other), both Error{kCheckpoint} with path and reason.
#pragma once
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::checkpoint {

// Called with the name of each step that changes the disk, before it: tests stop the process there. Empty: nothing.
using Observer = std::function<void(std::string_view step)>;

class File {
 public:
  enum class Mode { kRead, kCreate };  // kCreate: read and write, must not exist
  File(std::filesystem::path path, Mode mode);
  explicit File(int descriptor, std::filesystem::path path) : path_(std::move(path)), descriptor_(descriptor) {}
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  int64_t Size() const;
  void ReadAt(int64_t offset, std::span<std::byte> out) const;  // all of it; CKP004 if the file ends before
  void WriteAt(int64_t offset, std::span<const std::byte> bytes);
  void Reserve(int64_t bytes);  // sets the size; takes the blocks from the disk where the file system can
  void StartWriteback(int64_t offset, int64_t bytes);  // a hint: begin to write these dirty pages
  void SyncAndClose();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

// Throws CKP013 unless the file system of `folder` has bytes x 1.02 + 64 MiB free: called once for the sum over all
// ranks, before any of them writes. `folder` or its nearest existing parent.
void RequireFreeSpace(const std::filesystem::path& folder, int64_t bytes);

struct Hash128 {
  uint64_t low = 0, high = 0;
  bool operator==(const Hash128&) const = default;
};
std::string Hex(const Hash128& hash);  // 32 digits, high first
std::string Hex(uint64_t hash);        // 16 digits
bool ParseHex(std::string_view text, Hash128& hash);

uint64_t Xxh3(std::span<const std::byte> bytes);
Hash128 Xxh3Of128(std::span<const std::byte> bytes);

class Xxh3Stream {  // 64 and 128 bits come from one state
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;
  void Update64(std::span<const std::byte> bytes);
  void Update128(std::span<const std::byte> bytes);
  void Reset64();
  uint64_t Digest64() const;
  Hash128 Digest128() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Hash128 HashFile(const File& file);  // the whole file, read in pieces of 16 MiB

using Uuid = std::array<uint8_t, 16>;
Uuid NewUuid();
std::string Hex(const Uuid& uuid);
bool ParseHex(std::string_view text, Uuid& uuid);

}  // namespace trireme::checkpoint
