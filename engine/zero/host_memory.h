// Flat tensors in host memory for what is offloaded. Page-locked memory comes from CUDA in the exact size: LibTorch's
// caching allocator rounds up to powers of two, which a model that just fits cannot afford. Without page-locking
// (pin_memory false, or the limit of the system) a copy to or from the device goes through the driver's own buffers, at
// about half the speed, and the thread that issues it waits.
//   at::Tensor masters = HostFlat(elements, at::kFloat, pinned);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace trireme {

// Zero-filled, [elements], 64-byte aligned; freed with its last view. `pinned`: asks for page-locked memory, and warns
// once where there is none to be had. On a build without CUDA memory is plain. Throws Error{kEnvironment, ZER001} where
// the system has no memory left.
at::Tensor HostFlat(int64_t elements, at::ScalarType type, bool pinned);

// The same in a file of `folder`, which has no name and goes with the last view (offload_param.device nvme): the system
// keeps in memory what it has room for. Never page-locked. Throws Error{kEnvironment, ZER002} where the folder has no
// such room.
at::Tensor FileFlat(int64_t elements, at::ScalarType type, const std::string& folder);

}  // namespace trireme
