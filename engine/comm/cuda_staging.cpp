// A GPU as host-staged communication sees it: copies on streams, events as signals, and a word of pinned memory as the
// flag. The wait for it is cuStreamWaitValue32, found at run time: the program does not link the driver's library.
#include <cuda.h>  // types and constants only
#include <cuda_runtime.h>
#include <fmt/core.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/comm/cuda_query.h"
#include "engine/comm/host_staged.h"

namespace trireme {
namespace {

void CheckCuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::kDevice, "COM018", fmt::format("{}: {}", call, cudaGetErrorString(status)), "",
              "run again with CUDA_LAUNCH_BLOCKING=1; an error of an earlier kernel may show up here");
}

using StreamWaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

StreamWaitValue FindStreamWaitValue() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  constexpr unsigned kVersion = 12000;  // from then on these waits need no option of the driver
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, kVersion, cudaEnableDefault, &found);
#else
  const cudaError_t status = cudaGetDriverEntryPoint("cuStreamWaitValue32", &function, cudaEnableDefault, &found);
#endif
  if (status == cudaSuccess && found == cudaDriverEntryPointSuccess) return reinterpret_cast<StreamWaitValue>(function);
  cudaGetLastError();  // not an error of a later call
  return nullptr;
}

class CudaStagingDevice : public StagingDevice {
 public:
  explicit CudaStagingDevice(GpuSharers sharers) {
    CheckCuda(cudaGetDevice(&device_), "cudaGetDevice");
    flag_ = reinterpret_cast<uint32_t*>(Allocate(sizeof(uint32_t)));
    *flag_ = 0;
    void* address = nullptr;
    CheckCuda(cudaHostGetDevicePointer(&address, flag_, 0), "cudaHostGetDevicePointer");
    flag_address_ = reinterpret_cast<CUdeviceptr>(address);
    CheckCuda(cudaEventCreateWithFlags(&end_, cudaEventDisableTiming), "cudaEventCreate");
    if (sharers == GpuSharers::kProcesses) FindWait();
  }
  ~CudaStagingDevice() override {
    // Streams may still copy: nothing waits any more, so that this ends soon.
    if (marked_) cudaEventSynchronize(end_);
    for (std::byte* memory : memory_) cudaFreeHost(memory);
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaEventDestroy(end_);
  }

  bool Owns(const at::Tensor& tensor) const override { return tensor.is_cuda() && tensor.get_device() == device_; }
  std::byte* Allocate(int64_t bytes) override {
    void* memory = nullptr;
    CheckCuda(cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocPortable | cudaHostAllocMapped),
              "cudaHostAlloc");
    memory_.push_back(static_cast<std::byte*>(memory));
    return memory_.back();
  }
  void EnterThread() override { cudaSetDevice(device_); }

  void CopyAsync(const void* from, void* to, int64_t bytes, CommStream stream) override {
    CheckCuda(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
        "cudaMemcpyAsync");
  }
  Signal SignalAsync(CommStream stream) override {
    const cudaEvent_t event = TakeEvent();
    CheckCuda(cudaEventRecord(event, static_cast<cudaStream_t>(stream)), "cudaEventRecord");
    return event;
  }
  bool Signalled(Signal signal) override {
    const cudaError_t status = Answer(cudaEventQuery(static_cast<cudaEvent_t>(signal)));
    if (status == cudaErrorNotReady) return false;
    CheckCuda(status, "cudaEventQuery");
    return true;
  }
  void Recycle(Signal signal) noexcept override {
    const std::lock_guard lock(mutex_);
    events_.push_back(static_cast<cudaEvent_t>(signal));
  }

  bool StreamsWait(CommStream stream) const override { return wait_ != nullptr && stream != nullptr; }
  void AwaitFlagAsync(uint32_t number, CommStream stream) override {
    const CUresult result = wait_(static_cast<CUstream>(stream), flag_address_, number, CU_STREAM_WAIT_VALUE_GEQ);
    if (result == CUDA_SUCCESS) return;
    throw Error(ErrorCode::kDevice, "COM018", fmt::format("cuStreamWaitValue32: error {}", static_cast<int>(result)),
                "", "run again with CUDA_LAUNCH_BLOCKING=1; an error of an earlier kernel may show up here");
  }
  void SetFlag(uint32_t number) noexcept override {
    std::atomic_ref(*flag_).store(number, std::memory_order_release);  // behind the data that the stream copies next
  }

  void FollowAsync(CommStream stream) override {
    if (!marked_ || stream == last_) return;
    CheckCuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), end_, 0), "cudaStreamWaitEvent");
  }
  void MarkEnd(CommStream stream) override {
    CheckCuda(cudaEventRecord(end_, static_cast<cudaStream_t>(stream)), "cudaEventRecord");
    last_ = stream;
    marked_ = true;
  }
  bool Ended() override { return !marked_ || Signalled(end_); }

 private:
  cudaEvent_t TakeEvent() {
    {
      const std::lock_guard lock(mutex_);
      if (!events_.empty()) {
        const cudaEvent_t event = events_.back();
        events_.pop_back();
        return event;
      }
    }
    cudaEvent_t event = nullptr;
    CheckCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    return event;
  }

  // Tries a wait that is over at once: a driver may know the call and a device refuse it.
  void FindWait() {
    wait_ = FindStreamWaitValue();
    cudaStream_t stream = nullptr;
    CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    if (wait_ != nullptr && wait_(stream, flag_address_, 0, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS) wait_ = nullptr;
    cudaStreamDestroy(stream);
    if (wait_ == nullptr) {
      log::Warn(
          "this driver has no waits of streams for memory: each communication of ranks that share a GPU blocks "
          "its rank, so that nothing overlaps");
    }
  }

  int device_ = 0;
  StreamWaitValue wait_ = nullptr;  // null: calls wait
  uint32_t* flag_ = nullptr;
  CUdeviceptr flag_address_ = 0;
  std::vector<std::byte*> memory_;
  cudaEvent_t end_ = nullptr;
  CommStream last_ = nullptr;
  bool marked_ = false;
  std::mutex mutex_;
  std::vector<cudaEvent_t> events_;  // free ones
};

}  // namespace

std::unique_ptr<StagingDevice> MakeCudaStagingDevice(GpuSharers sharers) {
  return std::make_unique<CudaStagingDevice>(sharers);
}

}  // namespace trireme
