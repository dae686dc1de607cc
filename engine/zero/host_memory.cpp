#include "engine/zero/host_memory.h"

#include <ATen/ops/from_blob.h>
#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>

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

}  // namespace trireme
