// Host-staged communication on one GPU: ranks that are threads, with streams of their own.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/host_staged.h"
#include "tests/ranks/comm/operations.h"
#include "tests/support/run_threads.h"

#ifdef TRIREME_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace trireme::test {
namespace {

#ifdef TRIREME_HAS_CUDA
class HostStagedGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "this machine has no GPU";
  }
};

class Stream {
 public:
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CommStream() const { return stream_; }
  void Drain() { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }
  bool Idle() { return cudaStreamQuery(stream_) == cudaSuccess; }

 private:
  cudaStream_t stream_ = nullptr;
};

std::unique_ptr<Communicator> Stage(ThreadRank& self, const std::string& name, int64_t staging_bytes = kStagingBytes) {
  return MakeHostStagedCommunicator(self.MakeCommunicator(name), MakeCudaStagingDevice(), staging_bytes);
}

// On the GPU, and there for every stream.
at::Tensor OnGpu(const at::Tensor& tensor) {
  const at::Tensor there = tensor.to(at::Device(at::kCUDA, 0));
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  return there;
}

struct Pair {
  at::Tensor got, want;
};

// Every operation on two streams in turn, enqueued without a wait. All memory is there before: its allocation may wait
// for streams, also for another rank's.
void CheckOnStreams(Communicator& group, int64_t n, at::ScalarType type) {
  const int size = group.size(), rank = group.rank(), next = (rank + 1) % size, previous = (rank + size - 1) % size;
  Stream first, second;
  std::vector<Pair> pairs;
  const auto keep = [&](const at::Tensor& got, const at::Tensor& want) { pairs.push_back({OnGpu(got), want}); };
  std::vector<at::Tensor> parts;
  for (int r = 0; r < size; ++r) parts.push_back(Values(r, n, type));
  const at::Tensor mine = OnGpu(parts[static_cast<size_t>(rank)]), wide = OnGpu(Values(rank, size * n, type, 5));
  const at::Tensor empty = at::zeros({n}, type);
  constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kMax};
  for (const ReduceOp op : kOps) keep(Values(rank, n, type), Reduced(size, n, type, op));
  for (const ReduceOp op : kOps) keep(empty, Reduced(size, size * n, type, op, 5).narrow(0, rank * n, n));
  keep(at::zeros({size * n}, type), at::stack(parts).view({size * n}));
  keep(Values(rank, n, type, 11), Values(size - 1, n, type, 11));
  keep(empty, Values(previous, n, type));
  group.Barrier();
  for (size_t i = 0; i < kOps.size(); ++i) {
    group.AllReduce(pairs[i].got, kOps[i], first);
    group.ReduceScatter(wide, pairs[kOps.size() + i].got, kOps[i], second);
  }
  group.AllGather(mine, pairs[4].got, first);
  group.Broadcast(pairs[5].got, size - 1, second);
  group.GroupStart();
  group.Send(mine, next, first);
  group.Recv(pairs[6].got, previous, first);
  group.GroupEnd();
  first.Drain();
  second.Drain();
  group.CheckHealth();
  for (size_t i = 0; i < pairs.size(); ++i) EXPECT_TRUE(pairs[i].got.cpu().equal(pairs[i].want)) << "result " << i;
}

// As a trainer's first run: while it gets its memory and its kernels, no stream may wait for another rank.
void RunFirst(Communicator& group, int64_t most, const std::vector<at::ScalarType>& types) {
  WaitOnHost(group, true);
  for (const at::ScalarType type : types) CheckOnStreams(group, most, type);
  group.Barrier();
  WaitOnHost(group, false);
}

TEST_F(HostStagedGpu, EveryOperationOnStreams) {
  for (const int world : {2, 3}) {
    EXPECT_EQ("", RunThreadRanks(world, [](ThreadRank& self) {
                const auto dp = Stage(self, "dp0");
                RunFirst(*dp, 300'007, ReducibleTypes());
                for (const int64_t n : {0, 1, 1021, 300'007}) {
                  for (const at::ScalarType type : ReducibleTypes()) CheckOnStreams(*dp, n, type);
                  dp->Barrier();
                }
              }));
  }
}

TEST_F(HostStagedGpu, LongTensorsGoInParts) {
  EXPECT_EQ("", RunThreadRanks(2, [](ThreadRank& self) {
              const auto dp = Stage(self, "dp0", 4096);
              RunFirst(*dp, 20'011, {at::kFloat});
              CheckOnStreams(*dp, 20'011, at::kFloat);
            }));
}

TEST_F(HostStagedGpu, TheDefaultStreamWaitsByItself) {
  EXPECT_EQ("", RunThreadRanks(2, [](ThreadRank& self) {
              const auto dp = Stage(self, "dp0");
              const at::Tensor tensor = OnGpu(Values(self.rank, 1021, at::kFloat));
              dp->AllReduce(tensor, ReduceOp::kSum);
              EXPECT_TRUE(tensor.cpu().equal(Reduced(2, 1021, at::kFloat, ReduceOp::kSum)));
            }));
}

TEST_F(HostStagedGpu, CallsReturnBeforeTheOtherRankHasCome) {
  EXPECT_EQ("", RunThreadRanks(2, [](ThreadRank& self) {
              Stream stream;
              const auto dp = Stage(self, "dp0");
              const auto gate = self.MakeCommunicator("gate");
              const at::Tensor tensor = OnGpu(Values(self.rank, 64, at::kFloat));
              if (self.rank == 1) gate->Barrier();
              dp->AllReduce(tensor, ReduceOp::kSum, stream);
              if (self.rank == 0) {
                EXPECT_FALSE(stream.Idle()) << "the driver has no waits of streams for memory";
                gate->Barrier();
              }
              stream.Drain();
              EXPECT_TRUE(tensor.cpu().equal(Reduced(2, 64, at::kFloat, ReduceOp::kSum)));
            }));
}

TEST_F(HostStagedGpu, AbortRaisesEveryFlag) {
  EXPECT_EQ("", RunThreadRanks(2, [](ThreadRank& self) {
              Stream stream;
              const auto dp = Stage(self, "dp0");
              if (self.rank == 1) return;
              const at::Tensor tensor = OnGpu(Values(self.rank, 64, at::kFloat));
              for (int i = 0; i < 3; ++i) dp->AllReduce(tensor, ReduceOp::kSum, stream);
              dp->Abort();
              stream.Drain();
              EXPECT_THROW(dp->CheckHealth(), Error);
            }));
}
#else
TEST(HostStagedGpu, NeedsAProgramWithCuda) { GTEST_SKIP() << "the program was built without CUDA"; }

#endif

}  // namespace
}  // namespace trireme::test
