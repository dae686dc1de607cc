#include "engine/base/error.h"
#include "engine/execute/lanes.h"

#ifdef TRIREME_HAS_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/cuda_query.h"
#endif

namespace trireme {
#ifdef TRIREME_HAS_CUDA
namespace {

void Check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::kDevice, "EXE001", std::string(call) + " failed: " + cudaGetErrorString(status), "",
              "see EXE001 in docs/errors/trainer.md");
}

// What lane cpu runs, in turn, on the thread that CUDA calls host functions from.
class HostWork {
 public:
  explicit HostWork(Lanes::Runner run) : run_(std::move(run)) {}

  static void Enqueue(const std::shared_ptr<HostWork>& self, const LaneWork& work, cudaStream_t stream) {
    auto item = std::make_unique<Item>(Item{self, work});
    Check(cudaLaunchHostFunc(stream, Run, item.get()), "cudaLaunchHostFunc");
    item.release();  // Run owns it now
  }

  // Waits for what runs now; nothing runs afterwards: what it works on may go.
  void End() {
    const std::lock_guard lock(running_);
    ended_ = true;
  }

  void Rethrow() {
    if (!failed_) return;
    const std::lock_guard lock(error_mutex_);
    std::rethrow_exception(error_);
  }

 private:
  struct Item {
    std::shared_ptr<HostWork> self;
    LaneWork work;
  };

  static void CUDART_CB Run(void* data) {
    const std::unique_ptr<Item> item(static_cast<Item*>(data));
    HostWork& self = *item->self;
    const std::lock_guard lock(self.running_);
    if (self.ended_ || self.failed_) return;
    try {
      self.run_(item->work, nullptr);
    } catch (...) {
      const std::lock_guard error_lock(self.error_mutex_);
      self.error_ = std::current_exception();
      self.failed_ = true;
    }
  }

  Lanes::Runner run_;
  std::mutex running_, error_mutex_;
  bool ended_ = false;
  std::atomic<bool> failed_ = false;
  std::exception_ptr error_;
};

// The host looks now and then whether what it waits for is done. To spin, as cudaEventSynchronize does, takes a core
// away from an optimizer on the host. Events that wake the host (cudaEventBlockingSync) made a step of 9.9 ms last 13.4
// ms on two H200; these pauses cost nothing that could be measured.
constexpr std::chrono::microseconds kPause{50};

template <typename Query>
void WaitUntilDone(const Query& query, const char* call) {
  cudaError_t status = Answer(query());
  for (; status == cudaErrorNotReady; status = Answer(query())) std::this_thread::sleep_for(kPause);
  Check(status, call);
}

class CudaLanes : public Lanes {
 public:
  CudaLanes(int device, Runner run)
      : run_(run), host_work_(std::make_shared<HostWork>(run)), guard_(static_cast<c10::DeviceIndex>(device)) {}

  ~CudaLanes() override {
    host_work_->End();
    for (const std::optional<Queue>& queue : lanes_) {
      if (!queue) continue;
      for (cudaEvent_t event : queue->events) cudaEventDestroy(event);
    }
  }

  Ticket Issue(Lane lane, const LaneWork& work, const LaneWaits& waits) override {
    host_work_->Rethrow();
    Queue& queue = QueueOf(lane);
    for (size_t other = 0; other < waits.size(); ++other) {
      if (waits[other] == 0) continue;
      Check(cudaStreamWaitEvent(queue.stream.stream(), EventOf(*lanes_[other], waits[other]), 0),
            "cudaStreamWaitEvent");
    }
    if (lane == Lane::kCpu) {
      HostWork::Enqueue(host_work_, work, queue.stream.stream());
    } else {
      const c10::cuda::CUDAStreamGuard current(queue.stream);
      run_(work, queue.stream.stream());
    }
    ++queue.issued;
    Check(cudaEventRecord(EventOf(queue, queue.issued), queue.stream.stream()), "cudaEventRecord");
    return {lane, queue.issued};
  }

  void Wait(Ticket ticket) override {
    if (ticket.number == 0) return;
    const cudaEvent_t event = EventOf(*lanes_[static_cast<size_t>(ticket.lane)], ticket.number);
    WaitUntilDone([&] { return cudaEventQuery(event); }, "cudaEventQuery");
    host_work_->Rethrow();
  }

  void Drain() override {
    for (const std::optional<Queue>& queue : lanes_) {
      if (queue) WaitUntilDone([&] { return cudaStreamQuery(queue->stream.stream()); }, "cudaStreamQuery");
    }
    host_work_->Rethrow();
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
  std::shared_ptr<HostWork> host_work_;
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
