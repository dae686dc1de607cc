// A rank's memory beside its plan: what there is before anything is allocated, what the run took, and what to say when
// it ends.
//   MemoryWatch watch(world, limits);
//   watch.RequireRoom(plan, world);                       // all ranks, before the first allocation
//   watch.Guard(plan, memory, [&] { ... });                 // what fails for want of memory says why
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "engine/advise/fill.h"
#include "engine/plan/memory_text.h"
#include "engine/plan/plan.h"
#include "engine/trainer/rank_world.h"
#include "engine/zero/rank_memory.h"

namespace trireme {

// What the user grants; 0: what there is.
struct MemoryLimits {
  int64_t device_bytes = 0;  // to each rank, of its device
  int64_t host_bytes = 0;    // to all ranks of a host
};

class MemoryWatch {
 public:
  // The text of cures for a plan that needs `excess` bytes less, one a line.
  using Cures = std::function<std::vector<std::string>(const Plan& plan, const MemoryShortage& shortage)>;

  // Reads what the device holds before this rank allocates. On a GPU the device's limit binds LibTorch's allocator.
  MemoryWatch(const RankWorld& world, const MemoryLimits& limits);

  // Collective. Where any rank's plan does not fit, throws on all ranks Error TRN060 (device, kDevice) or TRN061 (host,
  // kEnvironment) with the first such rank's account. What other processes hold of the host now is only warned of.
  void RequireRoom(const Plan& plan, RankWorld& world, const Cures& cures) const;

  MeasuredMemory Measure(const RankMemory& memory) const;

  // What this rank's plan may take, where "trireme.fill" chooses it: of the device (on the CPU of the host) its share,
  // and of the host's memory what it may offload to.
  FillOptions ToFill() const;

  // Runs `work`; what it throws for want of memory becomes Error TRN062 (device) or TRN063 (host) with the account of
  // rank `rank`, planned and measured.
  template <typename Work>
  auto Guard(const Plan& plan, int rank, const RankMemory& memory, const Cures& cures, const Work& work) const
      -> decltype(work()) {
    try {
      return work();
    } catch (const std::exception& error) {
      if (!IsOutOfMemory(error)) throw;
      Explain(plan, rank, memory, cures, error);
    }
  }

 private:
  MemoryRoom Room() const;
  [[noreturn]] void Explain(const Plan& plan, int rank, const RankMemory& memory, const Cures& cures,
                            const std::exception& error) const;

  at::Device device_;
  MemoryLimits limits_;
  int64_t ranks_per_node_ = 1, shared_devices_ = 0;
  int64_t device_bytes_ = 0, device_free_ = 0, reserved_ = 0;  // at the start
  int64_t resident_ = 0;                                       // of the process, at the start
};

}  // namespace trireme
