#include "engine/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace trireme {
namespace {

[[noreturn]] void Fail(const std::filesystem::path& path, const char* action, ErrorCode code, const char* id) {
  const int reason = errno;
  const char* fix = reason == ENOSPC || reason == EDQUOT ? "free space on this file system or choose another folder"
                    : reason == ENOENT                   ? "check the path"
                                                         : "check the path, its permissions and the file system";
  throw Error(code, id, std::string(action) + " failed: " + std::strerror(reason), path.string(), fix);
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::string ReadFile(const std::filesystem::path& path, ErrorCode code) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) Fail(path, "opening", code, "FIL001");
  std::string text;
  char buffer[1 << 16];
  for (ssize_t count; (count = ::read(file.get(), buffer, sizeof buffer)) != 0;) {
    if (count < 0) Fail(path, "reading", code, "FIL001");
    text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

void WriteFileDurably(const std::filesystem::path& path, std::string_view text, ErrorCode code) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    throw Error(code, "FIL002", "is there and is no regular file: it is not replaced", path.string(), "name a file");
  }
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  {
    const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (file.get() < 0) Fail(temporary, "creating", code, "FIL002");
    while (!text.empty()) {
      const ssize_t count = ::write(file.get(), text.data(), text.size());
      if (count < 0 && errno != EINTR) Fail(temporary, "writing", code, "FIL002");
      if (count > 0) text.remove_prefix(static_cast<size_t>(count));
    }
    if (::fsync(file.get()) != 0) Fail(temporary, "fsync", code, "FIL002");
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) Fail(path, "renaming", code, "FIL002");
  SyncPath(path.has_parent_path() ? path.parent_path() : ".", code);
}

void SyncPath(const std::filesystem::path& path, ErrorCode code) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) Fail(path, "opening", code, "FIL002");
  if (::fsync(file.get()) != 0) Fail(path, "fsync", code, "FIL002");
}

MappedFile::MappedFile(const std::filesystem::path& path, ErrorCode code) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) Fail(path, "opening", code, "FIL001");
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) Fail(path, "reading the size", code, "FIL001");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) Fail(path, "mapping", code, "FIL001");
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace trireme
