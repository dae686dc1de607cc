#include "engine/zero/host_memory.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/log.h"

#ifdef TRIREME_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace trireme {
namespace {

// Page-aligned zeros that take memory when they are touched.
void* MapZeros(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) {
    madvise(memory, bytes, MADV_HUGEPAGE);  // fewer entries to look up in passes over gigabytes; refused is no error
    return memory;
  }
  throw std::bad_alloc();
}

// Of `ulimit -l`.
std::string LockLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return FormatBytes(static_cast<int64_t>(limit.rlim_cur));
}

bool Lock(PageLock& page_lock, void* memory, size_t bytes) {
  std::string why_not;
  if (page_lock.lock(memory, bytes, why_not)) return true;
  if (!page_lock.told.exchange(true)) {
    log::Warn(
        "{} of host memory cannot be page-locked ({}; `ulimit -l` is {}): this and what cannot be locked after it is "
        "plain memory, whose copies to and from the device are slower. fix: raise `ulimit -l`, offload less, or set "
        "pin_memory to false",
        FormatBytes(static_cast<int64_t>(bytes)), why_not, LockLimit());
  }
  return false;
}

}  // namespace

#ifdef TRIREME_HAS_CUDA
// The pages are ours, so that they are zero and of exact size, and CUDA locks them.
std::shared_ptr<PageLock> SystemPageLock() {
  auto page_lock = std::make_shared<PageLock>();
  page_lock->lock = [](void* memory, size_t bytes, std::string& why_not) {
    const cudaError_t status = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
    if (status == cudaSuccess) return true;
    cudaGetLastError();  // else the next kernel's launch would report it
    why_not = cudaGetErrorString(status);
    return false;
  };
  page_lock->unlock = [](void* memory) { cudaHostUnregister(memory); };
  return page_lock;
}
#else
std::shared_ptr<PageLock> SystemPageLock() { return nullptr; }
#endif

at::Tensor HostFlat(int64_t elements, at::ScalarType type, std::shared_ptr<PageLock> page_lock) {
  const size_t bytes = static_cast<size_t>(std::max<int64_t>(elements, 1)) * c10::elementSize(type);
  void* memory = MapZeros(bytes);
  if (page_lock != nullptr && !Lock(*page_lock, memory, bytes)) page_lock = nullptr;
  const auto free = [bytes, page_lock](void* at) {
    if (page_lock != nullptr) page_lock->unlock(at);
    munmap(at, bytes);
  };
  return at::from_blob(memory, {elements}, free, at::TensorOptions().dtype(type));
}

at::Tensor FileFlat(int64_t elements, at::ScalarType type, const std::string& folder) {
  const size_t bytes = static_cast<size_t>(std::max<int64_t>(elements, 1)) * c10::elementSize(type);
  const auto fail = [&](int error) {
    throw Error(ErrorCode::kEnvironment, "ZER002",
                fmt::format("no file of {} for offloaded weights: {}", FormatBytes(static_cast<int64_t>(bytes)),
                            std::strerror(error)),
                folder, "free space there, or name another folder in offload_param.nvme_path");
  };
  std::string name = folder + "/trireme-weights-XXXXXX";
  const int file = mkstemp(name.data());
  if (file < 0) fail(errno);
  unlink(name.c_str());
  // All of its room now, so that the run cannot end for lack of it.
  const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  void* memory = error == 0 ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  const int problem = error != 0 ? error : errno;
  close(file);
  if (memory == MAP_FAILED) fail(problem);
  return at::from_blob(
      memory, {elements}, [bytes](void* at) { munmap(at, bytes); }, at::TensorOptions().dtype(type));
}

}  // namespace trireme
