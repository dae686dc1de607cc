#include "engine/zero/host_memory.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

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
  throw Error(ErrorCode::kEnvironment, "ZER001",
              fmt::format("no host memory for {} of offloaded states", FormatBytes(static_cast<int64_t>(bytes))),
              "zero_optimization.offload_optimizer",
              "`trireme plan` shows what each rank needs; offload less (ratio), to nvme, or use more ranks");
}

#ifdef TRIREME_HAS_CUDA
// The pages are ours, so that they are zero and of exact size, and CUDA locks them.
bool Lock(void* memory, size_t bytes) {
  const cudaError_t status = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
  if (status == cudaSuccess) return true;
  cudaGetLastError();  // else the next kernel's launch would report it
  static std::atomic<bool> told = false;
  if (!told.exchange(true)) {
    log::Warn("{} of host memory cannot be page-locked ({}): copies to and from the device are slower; see `ulimit -l`",
              FormatBytes(static_cast<int64_t>(bytes)), cudaGetErrorString(status));
  }
  return false;
}
void Unlock(void* memory) { cudaHostUnregister(memory); }
#else
bool Lock(void*, size_t) { return false; }
void Unlock(void*) {}
#endif

}  // namespace

at::Tensor HostFlat(int64_t elements, at::ScalarType type, bool pinned) {
  const size_t bytes = static_cast<size_t>(std::max<int64_t>(elements, 1)) * c10::elementSize(type);
  void* memory = MapZeros(bytes);
  const bool locked = pinned && Lock(memory, bytes);
  const auto free = [bytes, locked](void* at) {
    if (locked) Unlock(at);
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
