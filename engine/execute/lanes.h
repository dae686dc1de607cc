// Lanes: the queues on which one rank's instructions run, each first in, first out. One host thread issues.
//   Ticket t = lanes->Issue(Lane::kDp, work, waits);   lanes->Wait(t);
// On the CPU the compute lane runs inside Issue and every other lane has a thread; on a GPU every lane is a stream and
// a wait is an event, so that the host never blocks on the device. Lane cpu is a stream of host functions there: CUDA
// calls each when what it waits for has ended, and holds back what waits for it, so that neither the issuing thread nor
// a flag in memory has a part in it. Such a function calls nothing of CUDA and waits for no other rank, as CUDA
// demands; one that waited inside would hold up all others, which one thread may call.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "engine/comm/communicator.h"
#include "engine/schedule/compile.h"

namespace trireme {

struct StepContext;

// What a lane runs. All pointers must outlive the run.
struct LaneWork {
  const CompiledInstruction* instruction = nullptr;
  StepContext* step = nullptr;
  void* bound = nullptr;  // the executor's prepared views of the instruction
};

// The n-th instruction of a lane since the start, counted from 1; 0: nothing to wait for. Lanes are first in, first
// out, so one number a lane says all that is done.
struct Ticket {
  Lane lane = Lane::kCompute;
  uint64_t number = 0;
};

// Latest ticket to wait for on each lane; 0: none.
using LaneWaits = std::array<uint64_t, kNumLanes>;

// Writes the time at which everything before it on `stream` is done (nullptr: now) to `stamp`, which must outlive that.
void StampWhenDone(CommStream stream, std::chrono::steady_clock::time_point* stamp);

class Lanes {
 public:
  using Runner = std::function<void(const LaneWork&, CommStream)>;

  // `run` does the work of one instruction, on the lane's thread or stream. `on_error` is called once, by the thread
  // whose instruction failed first, so that communicators can be aborted and no lane waits for ever; then every call
  // rethrows the error.
  static std::unique_ptr<Lanes> MakeCpu(Runner run, std::function<void()> on_error);
  // cuda.cpp; on a build without CUDA it throws.
  static std::unique_ptr<Lanes> MakeCuda(int device, Runner run);

  virtual ~Lanes() = default;
  virtual Ticket Issue(Lane lane, const LaneWork& work, const LaneWaits& waits) = 0;
  virtual void Wait(Ticket ticket) = 0;  // the host waits
  virtual void Drain() = 0;              // the host waits for everything that was issued
};

}  // namespace trireme
