// Memory for transfers of a StateStore: begins at a multiple of kStorageAlignment, zeroed, freed with the object.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme {

class AlignedMemory {
 public:
  AlignedMemory() = default;
  // Error{kEnvironment, STO005} where the machine has not that much.
  explicit AlignedMemory(int64_t bytes);
  ~AlignedMemory();
  AlignedMemory(AlignedMemory&& other) noexcept;
  AlignedMemory& operator=(AlignedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, static_cast<size_t>(bytes_)}; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace trireme
