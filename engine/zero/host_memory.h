// Flat tensors in host memory for what is offloaded. Page-locked memory comes from CUDA in the exact size: LibTorch's
// caching allocator rounds up to powers of two, which a model that just fits cannot afford. Without page-locking
// (pin_memory false, or the limit of the system) a copy to or from the device goes through the driver's own buffers, at
// about half the speed, and the thread that issues it waits.
//   at::Tensor masters = HostFlat(elements, at::kFloat, SystemPageLock());
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace trireme {

// How pages are locked, and whether it was said that they cannot be.
struct PageLock {
  std::function<bool(void* memory, size_t bytes, std::string& why_not)> lock;
  std::function<void(void* memory)> unlock;
  std::atomic<bool> told = false;
};
// CUDA's way. Null on a build without CUDA: memory is plain.
std::shared_ptr<PageLock> SystemPageLock();

// Zero-filled, [elements], 64-byte aligned; freed with its last view. `page_lock`: asks for page-locked memory; where
// there is none to be had it is plain, and a warning says so once, with the bytes asked for and the limit. Null: plain.
// Throws std::bad_alloc where the system has no memory left.
at::Tensor HostFlat(int64_t elements, at::ScalarType type, std::shared_ptr<PageLock> page_lock);

// The same in a file of `folder`, which has no name and goes with the last view (offload_param.device nvme): the system
// keeps in memory what it has room for. Never page-locked. Throws Error{kEnvironment, ZER002} where the folder has no
// such room.
at::Tensor FileFlat(int64_t elements, at::ScalarType type, const std::string& folder);

}  // namespace trireme
