#include "engine/zero/rank_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/core.h>

#include <new>
#include <string_view>

#include "engine/base/bytes.h"

namespace trireme {
namespace {

size_t Index(MemoryClass memory_class) { return static_cast<size_t>(memory_class); }

std::string FirstLine(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

}  // namespace

OutOfMemory::OutOfMemory(MemoryClass memory_class, int64_t bytes, bool on_host, const std::string& reason)
    : Error(on_host ? ErrorCode::kEnvironment : ErrorCode::kDevice, on_host ? "ZER001" : "ZER003",
            fmt::format("{} of {} memory for {} cannot be had: {}", FormatBytes(bytes), on_host ? "host" : "device",
                        Name(memory_class), reason),
            "", "`trireme plan` shows what each rank needs: offload, shard or recompute more, or use more ranks"),
      memory_class_(memory_class),
      bytes_(bytes),
      on_host_(on_host) {}

RankMemory::RankMemory(at::Device device, const RankMemoryOptions& options) : device_(device), options_(options) {
  if (options_.page_lock == nullptr && device.is_cuda()) options_.page_lock = SystemPageLock();
}

at::Tensor RankMemory::OnDevice(MemoryClass memory_class, int64_t elements, at::ScalarType type, bool zeros) {
  const int64_t bytes = elements * static_cast<int64_t>(c10::elementSize(type));
  const int64_t limit = options_.device_limit, taken = SumOf(device_bytes());
  if (limit > 0 && taken + bytes > limit) {
    throw OutOfMemory(
        memory_class, bytes, /*on_host=*/false,
        fmt::format("{} are taken of the {} that --device-memory-gib leaves", FormatBytes(taken), FormatBytes(limit)));
  }
  try {
    const auto options = at::TensorOptions().dtype(type).device(device_);
    const at::Tensor tensor = zeros ? at::zeros({elements}, options) : at::empty({elements}, options);
    on_device_[Index(memory_class)] += bytes;
    return tensor;
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) throw;
    throw OutOfMemory(memory_class, bytes, /*on_host=*/false, FirstLine(error.what()));
  }
}

at::Tensor RankMemory::OnHost(MemoryClass memory_class, int64_t elements, at::ScalarType type, bool pinned) {
  const int64_t bytes = elements * static_cast<int64_t>(c10::elementSize(type));
  try {
    const at::Tensor tensor = HostFlat(elements, type, pinned ? options_.page_lock : nullptr);
    on_host_[Index(memory_class)] += bytes;
    return tensor;
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(memory_class, bytes, /*on_host=*/true, "the system has no memory or address space left");
  }
}

MemoryByClass RankMemory::Load(const Counts& counts) {
  MemoryByClass bytes{};
  for (size_t c = 0; c < bytes.size(); ++c) bytes[c] = counts[c];
  return bytes;
}

bool IsOutOfMemory(const std::exception& error) {
  if (dynamic_cast<const OutOfMemory*>(&error) != nullptr || dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    return true;
  }
  const std::string_view text = error.what();
  for (const std::string_view words : {"out of memory", "can't allocate memory", "cannot allocate memory"}) {
    if (text.find(words) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace trireme
