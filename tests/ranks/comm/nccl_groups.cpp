// Groups of NCCL operations when something fails between their two ends. NCCL and the CUDA runtime are played by the
// functions below, which the linker takes before those of the libraries, so no GPU is needed: they note the order of
// the calls, and no operation ever ends on the device.
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include "engine/base/error.h"
#include "engine/comm/backends.h"
#include "tests/support/run_ranks.h"

namespace {

struct Played {
  std::mutex mutex;
  std::string calls;              // '(' group start, ')' group end, 'r' reduction, 'X' abort
  thread_local static int depth;  // groups open on this thread, as in NCCL
  std::atomic<bool> refuses{false};
  void Note(char call) {
    const std::lock_guard lock(mutex);
    calls += call;
  }
  std::string Calls() {
    const std::lock_guard lock(mutex);
    return calls;
  }
};
thread_local int Played::depth = 0;
Played played;

ncclResult_t Operation() {
  played.Note('r');
  return played.refuses ? ncclInvalidArgument : ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id->internal, 0, sizeof id->internal);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t*) {
  *comm = reinterpret_cast<ncclComm_t>(&played);
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t) {
  played.Note('X');
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "played error"; }
const char* ncclGetLastError(ncclComm_t) { return "played cause"; }
ncclResult_t ncclGroupStart() {
  ++Played::depth;
  played.Note('(');
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  --Played::depth;
  played.Note(')');
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) {
  return Operation();
}
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return Operation(); }
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return Operation(); }

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t) {
  *data = nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemset(void*, int, size_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaErrorNotReady; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

}  // extern "C"

namespace trireme::test {
namespace {

using std::chrono::milliseconds;

// A tensor that says it is on GPU 0; nothing looks into it.
at::Tensor GpuTensor() {
  static float memory[4];
  c10::Storage storage(c10::Storage::use_byte_size_t(), sizeof memory,
                       c10::DataPtr(memory, c10::Device(c10::kCUDA, 0)));
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({4});
  return tensor;
}

std::string IdOf(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.id();
  }
  return "none";
}

// `run` on rank 0 of a group of two, whose other rank has ended.
std::string WithCommunicator(milliseconds timeout, const std::function<void(Communicator&)>& run) {
  return RunRanks(2, 60, [&](RankContext& ctx) {
    const auto store = ctx.store();
    if (ctx.rank == 1) return;
    const auto comm = MakeNcclCommunicator(store, {0, 1}, 0, "dp0", timeout);
    run(*comm);
    EXPECT_EQ(Played::depth, 0) << played.Calls();
  });
}

TEST(NcclGroups, TheWatchdogWaitsForTheEndOfAnOpenGroup) {
  EXPECT_EQ("", WithCommunicator(milliseconds(100), [](Communicator& comm) {
              comm.AllReduce(GpuTensor(), ReduceOp::kSum);  // is late, and ends the communicator
              comm.GroupStart();
              comm.AllReduce(GpuTensor(), ReduceOp::kSum);
              while (IdOf([&] { comm.CheckHealth(); }) == "none") std::this_thread::sleep_for(milliseconds(5));
              EXPECT_EQ(played.Calls(), "r(r");
              EXPECT_EQ(IdOf([&] { comm.GroupEnd(); }), "COM012");
              EXPECT_EQ(played.Calls(), "r(r)X");
            }));
}

TEST(NcclGroups, AnOperationAfterAFailureClosesTheGroup) {
  EXPECT_EQ("", WithCommunicator(milliseconds(100), [](Communicator& comm) {
              comm.AllReduce(GpuTensor(), ReduceOp::kSum);
              comm.GroupStart();
              while (IdOf([&] { comm.CheckHealth(); }) == "none") std::this_thread::sleep_for(milliseconds(5));
              EXPECT_EQ(IdOf([&] { comm.AllReduce(GpuTensor(), ReduceOp::kSum); }), "COM012");
              EXPECT_EQ(played.Calls(), "r()X");
              EXPECT_EQ(IdOf([&] { comm.GroupEnd(); }), "COM012");
              EXPECT_EQ(played.Calls(), "r()X");
            }));
}

TEST(NcclGroups, ARefusedOperationClosesTheGroup) {
  EXPECT_EQ("", WithCommunicator(milliseconds(60'000), [](Communicator& comm) {
              played.refuses = true;
              comm.GroupStart();
              EXPECT_EQ(IdOf([&] { comm.AllReduce(GpuTensor(), ReduceOp::kSum); }), "COM014");
              EXPECT_EQ(played.Calls(), "(r)X");
            }));
}

TEST(NcclGroups, ARefusedTransferClosesItsGroup) {
  EXPECT_EQ("", WithCommunicator(milliseconds(60'000), [](Communicator& comm) {
              played.refuses = true;
              EXPECT_EQ(IdOf([&] { comm.Send(GpuTensor(), 1); }), "COM014");
              EXPECT_EQ(played.Calls(), "(r)X");
            }));
}

TEST(NcclGroups, AbortClosesAGroupThatAnErrorLeftOpen) {
  EXPECT_EQ("", WithCommunicator(milliseconds(60'000), [](Communicator& comm) {
              comm.GroupStart();
              comm.AllReduce(GpuTensor(), ReduceOp::kSum);
              comm.Abort();
              EXPECT_EQ(played.Calls(), "(r)X");
            }));
}

TEST(NcclGroups, AGroupWhoseThreadHasLeftItIsNotWaitedForLong) {
  EXPECT_EQ("", WithCommunicator(milliseconds(60'000), [](Communicator& comm) {
              std::thread([&] { comm.GroupStart(); }).join();
              comm.Abort();
              EXPECT_EQ(played.Calls(), "(");
              const auto begin = std::chrono::steady_clock::now();
              while (played.Calls() == "(" && std::chrono::steady_clock::now() - begin < milliseconds(20'000))
                std::this_thread::sleep_for(milliseconds(20));
              EXPECT_EQ(played.Calls(), "(X");
            }));
}

}  // namespace
}  // namespace trireme::test
