#include "engine/storage/aligned_memory.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/bytes.h"
#include "engine/base/error.h"

namespace trireme {

AlignedMemory::AlignedMemory(int64_t bytes) {
  if (bytes == 0) return;
  void* memory =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorCode::kEnvironment, "STO005",
                fmt::format("{} of memory for transfers to disk: {}", FormatBytes(bytes), std::strerror(errno)), "",
                "lower buffer_count, or give the process more memory");
  }
  ::madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // fewer pages for the kernel to pin; else no matter
  data_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
}

AlignedMemory::~AlignedMemory() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

AlignedMemory::AlignedMemory(AlignedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

AlignedMemory& AlignedMemory::operator=(AlignedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace trireme
