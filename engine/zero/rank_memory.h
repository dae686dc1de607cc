// The long-lived memory of one rank: every buffer of the device and of what is offloaded is made here, by class, so
// that an account of what is allocated exists at any time, also halfway through.
//   RankMemory memory(device, {});
//   at::Tensor moments = memory.OnDevice(MemoryClass::kMoments, elements, at::kFloat);
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/base/error.h"
#include "engine/plan/memory_account.h"
#include "engine/zero/host_memory.h"

namespace trireme {

// Thrown where memory ends: by this class, and by engine/trainer for what LibTorch throws.
class OutOfMemory : public Error {
 public:
  OutOfMemory(MemoryClass memory_class, int64_t bytes, bool on_host, const std::string& reason);
  MemoryClass memory_class() const { return memory_class_; }
  int64_t bytes() const { return bytes_; }
  bool on_host() const { return on_host_; }

 private:
  MemoryClass memory_class_;
  int64_t bytes_;
  bool on_host_;
};

struct RankMemoryOptions {
  int64_t device_limit = 0;  // bytes of this class's buffers on the device; 0: what the device has
  // How pages are locked; null: CUDA's way on a GPU, not at all on the CPU. Tests give one that fails.
  std::shared_ptr<PageLock> page_lock = nullptr;
};

class RankMemory {
 public:
  RankMemory(at::Device device, const RankMemoryOptions& options);

  // [elements]; `zeros`: filled with them. Throw OutOfMemory (ZER003; on the host ZER001).
  at::Tensor OnDevice(MemoryClass memory_class, int64_t elements, at::ScalarType type, bool zeros = true);
  // Zero-filled; `pinned`: page-locked, if that can be had (host_memory.h).
  at::Tensor OnHost(MemoryClass memory_class, int64_t elements, at::ScalarType type, bool pinned);

  // Allocated so far. What a step's arena holds is one figure, under kActivations.
  MemoryByClass device_bytes() const { return Load(on_device_); }
  MemoryByClass host_bytes() const { return Load(on_host_); }
  int64_t device_limit() const { return options_.device_limit; }

 private:
  using Counts = std::array<std::atomic<int64_t>, kNumMemoryClasses>;
  static MemoryByClass Load(const Counts& counts);

  at::Device device_;
  RankMemoryOptions options_;
  Counts on_device_{}, on_host_{};
};

// Whether `error` says that memory ended, whoever throws it: LibTorch's allocators, C++'s, CUDA, NCCL.
bool IsOutOfMemory(const std::exception& error);

}  // namespace trireme
