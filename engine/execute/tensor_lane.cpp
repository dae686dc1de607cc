#include "engine/execute/tensor_lane.h"

#include "engine/base/error.h"

#ifdef TRIREME_HAS_CUDA
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <string>
#endif

namespace trireme {
namespace {

class CpuTensorLane final : public TensorParallel {
 public:
  explicit CpuTensorLane(Communicator& comm) : comm_(comm) {}
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  void AllReduce(const at::Tensor& inout, ReduceOp op) override { comm_.AllReduce(inout, op); }
  void AllGather(const at::Tensor& in, const at::Tensor& out) override { comm_.AllGather(in, out); }
  void ReduceScatter(const at::Tensor& in, const at::Tensor& out) override {
    comm_.ReduceScatter(in, out, ReduceOp::kSum);
  }
  void Wait() override {}

 private:
  Communicator& comm_;
};

#ifdef TRIREME_HAS_CUDA
void Check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::kDevice, "EXE001", std::string(call) + " failed: " + cudaGetErrorString(status), "",
              "see EXE001 in docs/errors/trainer.md");
}

class CudaTensorLane final : public TensorParallel {
 public:
  CudaTensorLane(Communicator& comm, at::Device device)
      : comm_(comm), stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())) {
    for (cudaEvent_t* event : {&ready_, &done_}) {
      Check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
    }
  }
  ~CudaTensorLane() override {
    cudaEventDestroy(ready_);
    cudaEventDestroy(done_);
  }
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  void AllReduce(const at::Tensor& inout, ReduceOp op) override {
    Follow();
    comm_.AllReduce(inout, op, stream_.stream());
  }
  void AllGather(const at::Tensor& in, const at::Tensor& out) override {
    Follow();
    comm_.AllGather(in, out, stream_.stream());
  }
  void ReduceScatter(const at::Tensor& in, const at::Tensor& out) override {
    Follow();
    comm_.ReduceScatter(in, out, ReduceOp::kSum, stream_.stream());
  }
  void Wait() override {
    Check(cudaEventRecord(done_, stream_.stream()), "cudaEventRecord");
    Check(cudaStreamWaitEvent(Compute(), done_, 0), "cudaStreamWaitEvent");
  }

 private:
  cudaStream_t Compute() const { return c10::cuda::getCurrentCUDAStream(stream_.device_index()).stream(); }
  // A wait for an event means its latest record at the time of the call, so that one event serves all operations.
  void Follow() {
    Check(cudaEventRecord(ready_, Compute()), "cudaEventRecord");
    Check(cudaStreamWaitEvent(stream_.stream(), ready_, 0), "cudaStreamWaitEvent");
  }

  Communicator& comm_;
  c10::cuda::CUDAStream stream_;
  cudaEvent_t ready_ = nullptr, done_ = nullptr;
};
#endif

}  // namespace

std::unique_ptr<TensorParallel> MakeTensorLane(Communicator& comm, [[maybe_unused]] at::Device device) {
#ifdef TRIREME_HAS_CUDA
  if (device.is_cuda()) return std::make_unique<CudaTensorLane>(comm, device);
#endif
  return std::make_unique<CpuTensorLane>(comm);
}

}  // namespace trireme
