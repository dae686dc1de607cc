// A file driver for the HDF5 library that keeps what the library writes in memory, page by page: the gigabytes of bulk
// datasets, which it only reserves, cost nothing. (Its own memory driver holds the whole address range, and a file
// system is where a full disk would be met inside the library, which cannot close a file then.)
#pragma once
#include <hdf5.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

namespace trireme::hdf5 {

class SparseImage {
 public:
  int64_t Size() const { return size_; }
  void SetSize(int64_t size) { size_ = size; }
  void ReadAt(int64_t offset, std::span<std::byte> out) const;  // zeros where nothing was written
  void WriteAt(int64_t offset, std::span<const std::byte> bytes);

 private:
  static constexpr int64_t kPage = 4096;
  std::map<int64_t, std::array<std::byte, kPage>> pages_;
  int64_t size_ = 0;
};

// Lets files that are opened with this access list live in `image`, which must outlive them. Negative: the library
// refused.
herr_t UseSparseDriver(hid_t access, SparseImage& image);

}  // namespace trireme::hdf5
