#include "engine/execute/tensor_lane.h"

#include "engine/base/error.h"

#ifdef TRIREME_HAS_CUDA
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <string>
#endif

namespace trireme {
namespace {

// Runs `work` as an event of the trace.
template <typename Work>
void Traced(const TensorLaneTrace& trace, const char* part, Lane lane, CommStream stream, const Work& work) {
  if (trace.tracer == nullptr) return work();
  const size_t token = trace.tracer->BeginPart(part, lane, *trace.instruction, trace.step, stream);
  work();
  trace.tracer->End(token, stream);
}

// The compute lane waits for each operation as long as it takes.
class CpuTensorLane final : public TensorParallel {
 public:
  CpuTensorLane(Communicator& comm, const TensorLaneTrace& trace) : comm_(comm), trace_(trace) {}
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  void AllReduce(const at::Tensor& inout, ReduceOp op) override {
    Run("AllReduce", [&] { comm_.AllReduce(inout, op); });
  }
  void AllGather(const at::Tensor& in, const at::Tensor& out) override {
    Run("AllGather", [&] { comm_.AllGather(in, out); });
  }
  void ReduceScatter(const at::Tensor& in, const at::Tensor& out) override {
    Run("ReduceScatter", [&] { comm_.ReduceScatter(in, out, ReduceOp::kSum); });
  }
  void Wait() override {}

 private:
  template <typename Work>
  void Run(const char* part, const Work& work) const {
    Traced(trace_, "Wait", Lane::kCompute, nullptr, [&] { Traced(trace_, part, Lane::kTp, nullptr, work); });
  }
  Communicator& comm_;
  const TensorLaneTrace& trace_;
};

#ifdef TRIREME_HAS_CUDA
void Check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::kDevice, "EXE001", std::string(call) + " failed: " + cudaGetErrorString(status), "",
              "see EXE001 in docs/errors/trainer.md");
}

class CudaTensorLane final : public TensorParallel {
 public:
  CudaTensorLane(Communicator& comm, at::Device device, const TensorLaneTrace& trace)
      : comm_(comm), trace_(trace), stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())) {
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
    Run("AllReduce", [&] { comm_.AllReduce(inout, op, stream_.stream()); });
  }
  void AllGather(const at::Tensor& in, const at::Tensor& out) override {
    Run("AllGather", [&] { comm_.AllGather(in, out, stream_.stream()); });
  }
  void ReduceScatter(const at::Tensor& in, const at::Tensor& out) override {
    Run("ReduceScatter", [&] { comm_.ReduceScatter(in, out, ReduceOp::kSum, stream_.stream()); });
  }
  void Wait() override {
    Check(cudaEventRecord(done_, stream_.stream()), "cudaEventRecord");
    Traced(trace_, "Wait", Lane::kCompute, Compute(),
           [&] { Check(cudaStreamWaitEvent(Compute(), done_, 0), "cudaStreamWaitEvent"); });
  }

 private:
  cudaStream_t Compute() const { return c10::cuda::getCurrentCUDAStream(stream_.device_index()).stream(); }
  // A wait for an event means its latest record at the time of the call, so that one event serves all operations.
  void Follow() {
    Check(cudaEventRecord(ready_, Compute()), "cudaEventRecord");
    Check(cudaStreamWaitEvent(stream_.stream(), ready_, 0), "cudaStreamWaitEvent");
  }

  template <typename Work>
  void Run(const char* part, const Work& work) {
    Follow();
    Traced(trace_, part, Lane::kTp, stream_.stream(), work);
  }

  Communicator& comm_;
  const TensorLaneTrace& trace_;
  c10::cuda::CUDAStream stream_;
  cudaEvent_t ready_ = nullptr, done_ = nullptr;
};
#endif

}  // namespace

std::unique_ptr<TensorParallel> MakeTensorLane(Communicator& comm, [[maybe_unused]] at::Device device,
                                               const TensorLaneTrace& trace) {
#ifdef TRIREME_HAS_CUDA
  if (device.is_cuda()) return std::make_unique<CudaTensorLane>(comm, device, trace);
#endif
  return std::make_unique<CpuTensorLane>(comm, trace);
}

}  // namespace trireme
