#include "engine/trainer/memory_watch.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/base/bytes.h"
#include "engine/base/log.h"
#include "engine/base/strings.h"

#ifdef TRIREME_HAS_CUDA
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#endif

namespace trireme {
namespace {

constexpr char kSeparator = '\x1f';

// Of LibTorch's allocator and the driver; zeros on the CPU.
struct DeviceUse {
  int64_t total = 0, free = 0;
  int64_t allocated = 0, allocated_peak = 0, reserved = 0, reserved_peak = 0;
};

DeviceUse ReadDevice(at::Device device) {
  DeviceUse use;
#ifdef TRIREME_HAS_CUDA
  if (device.is_cuda()) {
    at::globalContext().lazyInitDevice(at::kCUDA);  // before it LibTorch's allocator knows no device
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();
    use.free = static_cast<int64_t>(free);
    use.total = static_cast<int64_t>(total);
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    use.allocated = stats.allocated_bytes[all].current;
    use.allocated_peak = stats.allocated_bytes[all].peak;
    use.reserved = stats.reserved_bytes[all].current;
    use.reserved_peak = stats.reserved_bytes[all].peak;
  }
#else
  (void)device;
#endif
  return use;
}

void LimitAllocator(at::Device device, int64_t bytes, int64_t total) {
#ifdef TRIREME_HAS_CUDA
  if (!device.is_cuda() || bytes <= 0 || total <= 0) return;
  const double share = std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total));
  at::globalContext().lazyInitDevice(at::kCUDA);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(share, device.index());
#else
  (void)device, (void)bytes, (void)total;
#endif
}

int64_t& At(MemoryByClass& bytes, MemoryClass memory_class) { return bytes[static_cast<size_t>(memory_class)]; }

std::string Indented(const std::string& text) {
  std::string result;
  for (const std::string_view line : Split(text, '\n')) {
    if (!line.empty()) result += fmt::format("\n  {}", line);
  }
  return result;
}

const MemoryAccount& AccountOf(const Plan& plan, int rank) {
  return plan.memory_of_pp_rank[static_cast<size_t>(plan.topology.CoordinateOf(rank).pp_rank)];
}

std::string CuresText(const std::vector<std::string>& cures) { return Join(cures, "\n       or "); }

}  // namespace

MemoryWatch::MemoryWatch(const RankWorld& world, const MemoryLimits& limits)
    : device_(world.device), limits_(limits), ranks_per_node_(std::max(1, world.ranks_per_node)) {
  if (world.shares_gpus) shared_devices_ = std::max(1, VisibleGpus());
  const DeviceUse use = ReadDevice(device_);
  device_bytes_ = use.total;
  device_free_ = use.free;
  reserved_ = use.reserved;
  resident_ = ReadProcessMemory().resident;
  LimitAllocator(device_, limits_.device_bytes, use.total);
}

MemoryRoom MemoryWatch::Room() const {
  MemoryRoom room;
  room.device_bytes = device_bytes_;
  room.device_free = device_free_ + reserved_;
  room.device_limit = limits_.device_bytes;
  room.ranks_per_node = ranks_per_node_;
  room.shared_devices = shared_devices_;
  room.host = ReadHostMemory();
  if (limits_.host_bytes > 0) {
    room.host.limit = room.host.limit > 0 ? std::min(room.host.limit, limits_.host_bytes) : limits_.host_bytes;
    room.host.available = std::min(room.host.available, limits_.host_bytes);
  }
  return room;
}

FillOptions MemoryWatch::ToFill() const {
  const MemoryRoom room = Room();
  const auto share_of = [](int64_t bytes, int64_t ranks) {
    return static_cast<double>(bytes) / static_cast<double>(ranks);
  };
  FillOptions fill;
  fill.may_offload = room.device_bytes > 0 || room.device_limit > 0;
  const double host = share_of(room.host.limit, room.ranks_per_node);
  if (room.device_limit > 0) {
    fill.limit_bytes = MemoryLimit(static_cast<double>(room.device_limit), fill.scope);
  } else if (room.shared_devices > 0) {
    const int64_t ranks = (room.ranks_per_node + room.shared_devices - 1) / room.shared_devices;
    fill.scope = MemoryScope::kSharedGpu;
    fill.limit_bytes = MemoryLimit(share_of(room.device_bytes, ranks), fill.scope);
  } else if (room.device_bytes > 0) {  // less what other processes hold
    fill.scope = MemoryScope::kGpu;
    const int64_t bytes = std::min(room.device_bytes, room.device_free + kContextBytes);
    fill.limit_bytes = MemoryLimit(static_cast<double>(bytes), fill.scope);
  } else {
    fill.scope = MemoryScope::kProcess;
    fill.limit_bytes = MemoryLimit(host, fill.scope);
  }
  if (fill.may_offload && host > 0) fill.host_limit_bytes = static_cast<int64_t>(kTightShare * host);
  return fill;
}

void MemoryWatch::RequireRoom(const Plan& plan, RankWorld& world, const Cures& cures) const {
  const std::optional<MemoryShortage> shortage = FindShortage(plan, world.rank, Room());
  if (shortage && !shortage->certain) {
    log::Warn("memory may end: {}. fix: {}", shortage->text, CuresText(cures(plan, *shortage)));
  }
  std::string problem;  // where it is, what, and the cure
  if (shortage && shortage->certain) {
    problem = fmt::format("{0}{1}does not fit, and nothing was allocated: {2}{3}{1}{4}",
                          shortage->on_host ? "host" : "device", kSeparator, shortage->text,
                          Indented(RenderMemory(AccountOf(plan, world.rank), nullptr, device_.is_cuda())),
                          CuresText(cures(plan, *shortage)));
  }
  const std::vector<std::string> problems = GatherTexts(*world.world, world.device, problem);
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    const std::vector<std::string> parts = Split(problems[rank], kSeparator);
    const bool on_host = parts[0] == "host";
    throw Error(on_host ? ErrorCode::kEnvironment : ErrorCode::kDevice, on_host ? "TRN061" : "TRN060", parts[1],
                fmt::format("rank {}", rank), parts[2]);
  }
}

MeasuredMemory MemoryWatch::Measure(const RankMemory& memory) const {
  MeasuredMemory measured;
  measured.device = memory.device_bytes();
  measured.host = memory.host_bytes();
  measured.process = ReadProcessMemory();
  measured.host_memory = ReadHostMemory();
  const int64_t own = SumOf(measured.device);
  int64_t& rest = At(measured.device, MemoryClass::kAttention);
  int64_t& context = At(measured.device, MemoryClass::kContext);
  const DeviceUse use = ReadDevice(device_);
  if (use.total == 0) {  // the host is the device: what is resident beside our buffers and what was there before
    measured.reserved_peak = measured.process.peak_resident;
    context = resident_;
    rest = std::max<int64_t>(0, measured.process.peak_resident - resident_ - own - SumOf(measured.host));
    return measured;
  }
  measured.reserved_peak = use.reserved_peak;
  rest = std::max<int64_t>(0, use.allocated_peak - own);
  measured.unused = use.reserved_peak - use.allocated_peak;
  measured.device_total = use.total;
  measured.device_free = use.free;
  // The context was there before the first reading, and so were other processes: what is more than a context's is
  // theirs. Ranks that share the device cannot be told apart: each is taken to have its context.
  const int64_t at_start = device_bytes_ - device_free_ - reserved_;
  const int64_t own_at_start = at_start < 2 * kContextBytes ? at_start : kContextBytes;
  const int64_t outside = use.total - use.free - use.reserved;
  context = shared_devices_ > 0 ? kContextBytes : own_at_start + std::max<int64_t>(0, outside - at_start);
  measured.others = std::max<int64_t>(0, use.total - use.free - use.reserved - context);
  return measured;
}

void MemoryWatch::Explain(const Plan& plan, int rank, const RankMemory& memory, const Cures& cures,
                          const std::exception& error) const {
  const auto* own = dynamic_cast<const OutOfMemory*>(&error);
  const bool on_host =
      own != nullptr ? own->on_host() : device_.is_cuda() && dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const MemoryAccount& planned = AccountOf(plan, rank);
  const MeasuredMemory measured = Measure(memory);
  MemoryShortage shortage;
  shortage.on_host = on_host;
  shortage.needed = on_host ? planned.host.peak() : planned.total();
  shortage.room = on_host                     ? measured.host_memory.limit
                  : limits_.device_bytes > 0  ? limits_.device_bytes
                  : measured.device_total > 0 ? measured.device_total - measured.others -
                                                    measured.device[static_cast<size_t>(MemoryClass::kContext)]
                                              : measured.host_memory.limit;
  const std::string_view what = error.what();
  const std::string reason = own != nullptr ? own->message() : std::string(what.substr(0, what.find('\n')));
  const MemoryByClass classes =
      on_host ? HostByClass(planned, MemoryMoment::kStep) : ByClass(planned, MemoryMoment::kStep);
  throw Error(on_host ? ErrorCode::kEnvironment : ErrorCode::kDevice, on_host ? "TRN063" : "TRN062",
              fmt::format("{} memory ended: {}\n  {} fill most of it; {}\n  {}{}", on_host ? "host" : "device", reason,
                          Name(LargestOf(classes)), WhoHoldsWhat(measured),
                          NeedOrFragmentation(measured, own != nullptr ? own->bytes() : 0, planned),
                          Indented(RenderMemory(planned, &measured, device_.is_cuda()))),
              fmt::format("rank {}", rank), CuresText(cures(plan, shortage)));
}

}  // namespace trireme
