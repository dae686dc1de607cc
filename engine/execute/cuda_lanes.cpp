#include "engine/base/error.h"
#include "engine/execute/lanes.h"

#ifdef TRIREME_HAS_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <optional>
#include <string>
#include <vector>
#endif

namespace trireme {
#ifdef TRIREME_HAS_CUDA
namespace {

void Check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::kDevice, "EXE001", std::string(call) + " failed: " + cudaGetErrorString(status), "",
              "see EXE001 in docs/errors/trainer.md");
}

class CudaLanes : public Lanes {
 public:
  CudaLanes(int device, Runner run) : run_(std::move(run)), guard_(static_cast<c10::DeviceIndex>(device)) {}

  ~CudaLanes() override {
    for (const std::optional<Queue>& queue : lanes_) {
      if (!queue) continue;
      for (cudaEvent_t event : queue->events) cudaEventDestroy(event);
    }
  }

  Ticket Issue(Lane lane, const LaneWork& work, const LaneWaits& waits) override {
    Queue& queue = QueueOf(lane);
    for (size_t other = 0; other < waits.size(); ++other) {
      if (waits[other] == 0) continue;
      Check(cudaStreamWaitEvent(queue.stream.stream(), EventOf(*lanes_[other], waits[other]), 0),
            "cudaStreamWaitEvent");
    }
    {
      const c10::cuda::CUDAStreamGuard current(queue.stream);
      run_(work, queue.stream.stream());
    }
    ++queue.issued;
    Check(cudaEventRecord(EventOf(queue, queue.issued), queue.stream.stream()), "cudaEventRecord");
    return {lane, queue.issued};
  }

  void Wait(Ticket ticket) override {
    if (ticket.number == 0) return;
    Check(cudaEventSynchronize(EventOf(*lanes_[static_cast<size_t>(ticket.lane)], ticket.number)),
          "cudaEventSynchronize");
  }

  void Drain() override {
    for (const std::optional<Queue>& queue : lanes_) {
      if (queue) Check(cudaStreamSynchronize(queue->stream.stream()), "cudaStreamSynchronize");
    }
  }

 private:
  static constexpr size_t kRing = 4096;
  struct Queue {
    explicit Queue(c10::cuda::CUDAStream on) : stream(on) {}
    c10::cuda::CUDAStream stream;
    uint64_t issued = 0;
    std::vector<cudaEvent_t> events = std::vector<cudaEvent_t>(kRing);
  };

  // Made with the lane's first instruction: a hardware queue serves only so many streams well, and ranks may share it.
  Queue& QueueOf(Lane lane) {
    std::optional<Queue>& queue = lanes_[static_cast<size_t>(lane)];
    if (!queue) {
      // Communication before computation where both could run: it is what the others wait for.
      const bool urgent = lane != Lane::kCompute;
      queue.emplace(c10::cuda::getStreamFromPool(urgent, guard_.current_device().index()));
      for (cudaEvent_t& event : queue->events)
        Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    }
    return *queue;
  }

  // A slot that a later instruction of the lane has taken over is a later point of the same queue: waiting for it is
  // still right.
  static cudaEvent_t EventOf(const Queue& queue, uint64_t number) { return queue.events[number % kRing]; }

  Runner run_;
  c10::cuda::CUDAGuard guard_;
  std::array<std::optional<Queue>, kNumLanes> lanes_;
};

}  // namespace

void StampWhenDone(CommStream stream, std::chrono::steady_clock::time_point* stamp) {
  if (stream == nullptr) {
    *stamp = std::chrono::steady_clock::now();
    return;
  }
  const auto write = [](void* target) {
    *static_cast<std::chrono::steady_clock::time_point*>(target) = std::chrono::steady_clock::now();
  };
  Check(cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), write, stamp), "cudaLaunchHostFunc");
}

std::unique_ptr<Lanes> Lanes::MakeCuda(int device, Runner run) {
  return std::make_unique<CudaLanes>(device, std::move(run));
}
#else
void StampWhenDone(CommStream, std::chrono::steady_clock::time_point* stamp) {
  *stamp = std::chrono::steady_clock::now();
}

std::unique_ptr<Lanes> Lanes::MakeCuda(int, Runner) {
  throw Error(ErrorCode::kDevice, "EXE002", "this program was built without CUDA", "",
              "use --device cpu, or build with the CUDA toolkit");
}
#endif

}  // namespace trireme
