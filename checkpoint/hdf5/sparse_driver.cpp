#include "checkpoint/hdf5/sparse_driver.h"

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>

namespace trireme::hdf5 {
namespace {

struct DriverInfo {
  SparseImage* image;
};

struct SparseFile {
  H5FD_t base;  // first: the library sees this part
  SparseImage* image;
  haddr_t end_of_allocation;
};

SparseFile& Of(H5FD_t* file) { return *reinterpret_cast<SparseFile*>(file); }
const SparseFile& Of(const H5FD_t* file) { return *reinterpret_cast<const SparseFile*>(file); }

H5FD_t* Open(const char*, unsigned, hid_t access, haddr_t) {
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access));
  if (info == nullptr) return nullptr;
  auto* file = new (std::nothrow) SparseFile{};
  if (file == nullptr) return nullptr;
  file->image = info->image;
  return &file->base;
}

herr_t Close(H5FD_t* file) {
  delete &Of(file);
  return 0;
}

int Compare(const H5FD_t* a, const H5FD_t* b) {
  const std::less<const SparseImage*> less;
  return less(Of(a).image, Of(b).image) ? -1 : less(Of(b).image, Of(a).image) ? 1 : 0;
}

herr_t Query(const H5FD_t*, unsigned long* flags) {
  if (flags != nullptr) *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE;
  return 0;
}

haddr_t GetEndOfAllocation(const H5FD_t* file, H5FD_mem_t) { return Of(file).end_of_allocation; }
herr_t SetEndOfAllocation(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  Of(file).end_of_allocation = address;
  return 0;
}
haddr_t GetEndOfFile(const H5FD_t* file, H5FD_mem_t) { return static_cast<haddr_t>(Of(file).image->Size()); }

herr_t Read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, void* buffer) {
  Of(file).image->ReadAt(static_cast<int64_t>(address), {static_cast<std::byte*>(buffer), size});
  return 0;
}

herr_t Write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, const void* buffer) {
  try {
    Of(file).image->WriteAt(static_cast<int64_t>(address), {static_cast<const std::byte*>(buffer), size});
    return 0;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

herr_t Truncate(H5FD_t* file, hid_t, hbool_t) {
  Of(file).image->SetSize(static_cast<int64_t>(Of(file).end_of_allocation));
  return 0;
}

H5FD_class_t MakeClass() {
  H5FD_class_t driver{};
#if H5_VERSION_GE(1, 13, 0)
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(H5_VFD_RESERVED + 3);
#endif
  driver.name = "trireme_sparse";
  driver.maxaddr = (haddr_t{1} << 62) - 1;
  driver.fc_degree = H5F_CLOSE_STRONG;
  driver.fapl_size = sizeof(DriverInfo);
  driver.open = Open;
  driver.close = Close;
  driver.cmp = Compare;
  driver.query = Query;
  driver.get_eoa = GetEndOfAllocation;
  driver.set_eoa = SetEndOfAllocation;
  driver.get_eof = GetEndOfFile;
  driver.read = Read;
  driver.write = Write;
  driver.truncate = Truncate;
  const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(map), std::end(map), driver.fl_map);
  return driver;
}

}  // namespace

void SparseImage::ReadAt(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const int64_t page = offset / kPage, inside = offset % kPage;
    const auto count = std::min<size_t>(out.size(), static_cast<size_t>(kPage - inside));
    const auto found = pages_.find(page);
    if (found == pages_.end()) {
      std::memset(out.data(), 0, count);
    } else {
      std::memcpy(out.data(), found->second.data() + inside, count);
    }
    out = out.subspan(count);
    offset += static_cast<int64_t>(count);
  }
}

void SparseImage::WriteAt(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const int64_t page = offset / kPage, inside = offset % kPage;
    const auto count = std::min<size_t>(bytes.size(), static_cast<size_t>(kPage - inside));
    std::memcpy(pages_[page].data() + inside, bytes.data(), count);  // a new page is zero
    bytes = bytes.subspan(count);
    offset += static_cast<int64_t>(count);
  }
  size_ = std::max(size_, offset);
}

herr_t UseSparseDriver(hid_t access, SparseImage& image) {
  static const H5FD_class_t driver = MakeClass();
  const hid_t id = H5FDregister(&driver);  // counted by the library: the list keeps it
  if (id < 0) return -1;
  const DriverInfo info{&image};
  const herr_t result = H5Pset_driver(access, id, &info);
  H5FDunregister(id);
  return result;
}

}  // namespace trireme::hdf5
