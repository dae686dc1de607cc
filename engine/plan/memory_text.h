// The account of memory in words: planned beside what a run measured, and what is wrong where it does not fit.
//   std::string table = RenderMemory(plan.memory, &measured);
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/host_memory.h"
#include "engine/plan/plan.h"

namespace trireme {

// What one rank's process has, as its allocators, the driver and the kernel see it.
struct MeasuredMemory {
  // By class, as allocated. The arena stands under kActivations as one figure: it holds what the plan says. kWorkspace
  // has the logits' chunk, kAttention all that LibTorch took beside our buffers, at its peak; kContext what the device
  // lost to this process outside of LibTorch's allocator, communicators too.
  MemoryByClass device{}, host{};
  // Of LibTorch's allocator at its peak, beside all of the above: reserved and in no tensor (fragmentation).
  int64_t unused = 0;
  int64_t peak() const { return SumOf(device) + unused; }
  // What LibTorch's allocator had reserved at most; on the CPU what was resident of the process.
  int64_t reserved_peak = 0;
  // Of the device. `others`: what other processes held when this one began. 0 on the CPU, whose memory is the host's.
  int64_t device_total = 0, device_free = 0, others = 0;
  ProcessMemory process;
  HostMemory host_memory;
};

// A table: one line a class that has anything, planned at the step's peak beside measured, and the peaks of
// initialisation and saving. `measured` may be null. `on_gpu`: with communicators and context.
std::string RenderMemory(const MemoryAccount& planned, const MeasuredMemory* measured, bool on_gpu);
// The same for machines: {"planned": {"weights": 1, ...}, "measured": {...}}.
std::string MemoryToJson(const MemoryAccount& planned, const MeasuredMemory& measured, bool on_gpu);

// Where a rank's memory comes from.
struct MemoryRoom {
  int64_t device_bytes = 0, device_free = 0;  // of the device; 0: it is the host's memory
  int64_t device_limit = 0;                   // what the user grants each rank of it; 0: all
  int64_t ranks_per_node = 1;
  int64_t shared_devices = 0;  // of the node, over which its ranks lie in turn (--oversubscribe); 0: one for each rank
  HostMemory host = {};
};

// A plan that asks for more than there is.
struct MemoryShortage {
  bool on_host = false;
  bool certain = true;  // false: others hold what is missing, now
  int64_t needed = 0, room = 0;
  std::string text;  // "2 ranks that share a device need ..., and ... are free of ...: moments take most of it, ..."
};
// Of `rank`, before anything is allocated; the device first. nullopt: it fits.
std::optional<MemoryShortage> FindShortage(const Plan& plan, int rank, const MemoryRoom& room);

// Where an allocation of `asked` bytes failed: what is left of the device (on the CPU of the host), and who has the
// rest; and whether memory is truly needed, or lies in pieces that are too small.
std::string WhoHoldsWhat(const MeasuredMemory& measured);
std::string NeedOrFragmentation(const MeasuredMemory& measured, int64_t asked, const MemoryAccount& planned);

// Keys that would make the plan smaller, in words, the cheapest first.
std::vector<std::string> WaysToShrink(const Plan& plan, bool on_host);

}  // namespace trireme
