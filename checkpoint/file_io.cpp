#include "checkpoint/file_io.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/bytes.h"
#include "engine/base/error.h"

namespace trireme::checkpoint {
namespace {

constexpr int64_t kPiece = 16 << 20;

[[noreturn]] void Fail(const std::filesystem::path& path, const std::string& action, int reason) {
  if (reason == ENOSPC || reason == EDQUOT || reason == EFBIG) {
    throw Error(
        ErrorCode::kCheckpoint, "CKP013", fmt::format("{} failed: {}", action, std::strerror(reason)), path.string(),
        reason == EFBIG ? "raise the limit on file sizes (ulimit -f), or choose a file system that allows larger files"
                        : "free space on this file system, or save to another one; earlier checkpoints are untouched");
  }
  throw Error(ErrorCode::kCheckpoint, "CKP014", fmt::format("{} failed: {}", action, std::strerror(reason)),
              path.string(), "check the path, its permissions and the file system");
}

bool ParseHexDigits(std::string_view text, std::span<uint8_t> bytes) {
  if (text.size() != bytes.size() * 2) return false;
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

}  // namespace

File::File(std::filesystem::path path, Mode mode) : path_(std::move(path)) {
  const int flags = mode == Mode::kRead ? O_RDONLY : O_RDWR | O_CREAT | O_EXCL;
  descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0644);
  if (descriptor_ < 0) Fail(path_, mode == Mode::kRead ? "opening" : "creating", errno);
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int64_t File::Size() const {
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0) Fail(path_, "reading the size", errno);
  return info.st_size;
}

void File::ReadAt(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(descriptor_, out.data(), out.size(), offset);
    if (count < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      Fail(path_, fmt::format("reading {} bytes at {}", out.size(), offset), errno);
    }
    if (count == 0) {
      throw Error(ErrorCode::kCheckpoint, "CKP004",
                  fmt::format("the file ends at {}, {} more bytes were expected", offset, out.size()), path_.string(),
                  "restore the file, or resume from an earlier checkpoint");
    }
    out = out.subspan(static_cast<size_t>(count));
    offset += count;
  }
}

void File::WriteAt(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (count < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      Fail(path_, fmt::format("writing {} bytes at {}", bytes.size(), offset), errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
}

void File::Reserve(int64_t bytes) {
  // A size limit would raise SIGXFSZ, which ends the process: it is asked for first.
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<rlim_t>(bytes) > limit.rlim_cur) {
    Fail(path_,
         fmt::format("reserving {} (the limit is {})", FormatBytes(bytes),
                     FormatBytes(static_cast<int64_t>(limit.rlim_cur))),
         EFBIG);
  }
  if (bytes > 0 && ::fallocate(descriptor_, 0, 0, bytes) != 0) {
    const int reason = errno;
    if (reason != EOPNOTSUPP && reason != ENOSYS) {
      struct statvfs space {};
      std::string action = fmt::format("reserving {}", FormatBytes(bytes));
      if (::fstatvfs(descriptor_, &space) == 0) {
        action += fmt::format(" ({} are free)", FormatBytes(static_cast<int64_t>(space.f_bavail * space.f_frsize)));
      }
      Fail(path_, action, reason);
    }
  }
  if (::ftruncate(descriptor_, bytes) != 0)
    Fail(path_, fmt::format("setting the size to {}", FormatBytes(bytes)), errno);
}

void File::StartWriteback(int64_t offset, int64_t bytes) {
  ::sync_file_range(descriptor_, offset, bytes, SYNC_FILE_RANGE_WRITE);  // a hint: fsync reports what goes wrong
}

void File::SyncAndClose() {
  if (::fsync(descriptor_) != 0) Fail(path_, "fsync", errno);
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) Fail(path_, "closing", errno);
}

void RequireFreeSpace(const std::filesystem::path& folder, int64_t bytes) {
  std::filesystem::path place = std::filesystem::absolute(folder);
  while (!std::filesystem::exists(place) && place.has_relative_path()) place = place.parent_path();
  struct statvfs space {};
  if (::statvfs(place.c_str(), &space) != 0) Fail(place, "reading the free space", errno);
  const auto available = static_cast<int64_t>(space.f_bavail * space.f_frsize);
  const int64_t needed = bytes + bytes / 50 + (int64_t{64} << 20);
  if (available >= needed) return;
  throw Error(
      ErrorCode::kCheckpoint, "CKP013",
      fmt::format("a checkpoint needs {} with its margin, {} are free", FormatBytes(needed), FormatBytes(available)),
      folder.string(), "free space on this file system, or save to another one; earlier checkpoints are untouched");
}

std::string Hex(uint64_t hash) { return fmt::format("{:016x}", hash); }
std::string Hex(const Hash128& hash) { return fmt::format("{:016x}{:016x}", hash.high, hash.low); }

bool ParseHex(std::string_view text, Hash128& hash) {
  std::array<uint8_t, 16> bytes{};
  if (!ParseHexDigits(text, bytes)) return false;
  hash = {};
  for (size_t i = 0; i < 8; ++i) hash.high = hash.high << 8 | bytes[i];
  for (size_t i = 8; i < 16; ++i) hash.low = hash.low << 8 | bytes[i];
  return true;
}

uint64_t Xxh3(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Hash128 Xxh3Of128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

struct Xxh3Stream::State {
  XXH3_state_t* narrow = XXH3_createState();
  XXH3_state_t* wide = XXH3_createState();
  State() {
    XXH3_64bits_reset(narrow);
    XXH3_128bits_reset(wide);
  }
  ~State() {
    XXH3_freeState(narrow);
    XXH3_freeState(wide);
  }
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {}
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;
void Xxh3Stream::Update64(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->narrow, bytes.data(), bytes.size());
}
void Xxh3Stream::Update128(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->wide, bytes.data(), bytes.size());
}
void Xxh3Stream::Reset64() { XXH3_64bits_reset(state_->narrow); }
uint64_t Xxh3Stream::Digest64() const { return XXH3_64bits_digest(state_->narrow); }
Hash128 Xxh3Stream::Digest128() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->wide);
  return {hash.low64, hash.high64};
}

Hash128 HashFile(const File& file) {
  const int64_t size = file.Size();
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(std::min(kPiece, size) + 1));
  Xxh3Stream stream;
  for (int64_t offset = 0; offset < size; offset += kPiece) {
    const std::span<std::byte> piece(buffer.get(), static_cast<size_t>(std::min(kPiece, size - offset)));
    file.ReadAt(offset, piece);
    stream.Update128(piece);
  }
  return stream.Digest128();
}

Uuid NewUuid() {
  Uuid uuid{};
  size_t filled = 0;
  while (filled < uuid.size()) {
    const ssize_t count = ::getrandom(uuid.data() + filled, uuid.size() - filled, 0);
    if (count > 0) filled += static_cast<size_t>(count);
  }
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0F) | 0x40);  // version 4 of RFC 4122
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3F) | 0x80);
  return uuid;
}

std::string Hex(const Uuid& uuid) {
  std::string text;
  for (const uint8_t byte : uuid) text += fmt::format("{:02x}", byte);
  return text;
}

bool ParseHex(std::string_view text, Uuid& uuid) { return ParseHexDigits(text, uuid); }

}  // namespace trireme::checkpoint
