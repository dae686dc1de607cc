// Host-staged communication of processes that share a GPU, over Gloo: calls return at once, and streams wait. A program
// of its own: CUDA may not have been touched before the ranks are forked.
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/base/error.h"
#include "tests/support/run_ranks.h"

#ifdef TRIREME_HAS_CUDA
#include "tests/ranks/comm/gpu_streams.h"
#endif

namespace trireme::test {
namespace {

#ifdef TRIREME_HAS_CUDA
class HostStagedGpuProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "this machine has no GPU";
  }
};

std::unique_ptr<Communicator> Stage(RankContext& ctx, int64_t staging_bytes = kStagingBytes) {
  return MakeHostStagedCommunicator(ctx.MakeGloo("dp0"), MakeCudaStagingDevice(GpuSharers::kProcesses), staging_bytes);
}

TEST_F(HostStagedGpuProcesses, EveryOperationOnStreams) {
  for (const int world : {2, 3}) {
    EXPECT_EQ("", RunRanks(world, 120, [](RankContext& ctx) {
                const auto dp = Stage(ctx);
                RunFirst(*dp, 300'007, ReducibleTypes());
                for (const int64_t n : {0, 1, 1021, 300'007}) {
                  for (const at::ScalarType type : ReducibleTypes()) CheckOnStreams(*dp, n, type);
                }
              }));
  }
}

TEST_F(HostStagedGpuProcesses, LongTensorsGoInParts) {
  EXPECT_EQ("", RunRanks(2, 60, [](RankContext& ctx) {
              const auto dp = Stage(ctx, 4096);
              RunFirst(*dp, 20'011, {at::kFloat});
              CheckOnStreams(*dp, 20'011, at::kFloat);
            }));
}

TEST_F(HostStagedGpuProcesses, CallsReturnBeforeTheOtherRankHasCome) {
  EXPECT_EQ("", RunRanks(2, 60, [](RankContext& ctx) {
              CudaStream stream;
              const auto dp = Stage(ctx);
              const auto gate = ctx.MakeGloo("gate");
              const at::Tensor tensor = OnGpu(Values(ctx.rank, 64, at::kFloat));
              if (ctx.rank == 1) gate->Barrier();
              dp->AllReduce(tensor, ReduceOp::kSum, stream);
              if (ctx.rank == 0) {
                EXPECT_FALSE(stream.Idle()) << "the driver has no waits of streams for memory";
                gate->Barrier();
              }
              stream.Drain();
              EXPECT_TRUE(tensor.cpu().equal(Reduced(2, 64, at::kFloat, ReduceOp::kSum)));
            }));
}

TEST_F(HostStagedGpuProcesses, AbortRaisesEveryFlag) {
  EXPECT_EQ("", RunRanks(2, 60, [](RankContext& ctx) {
              CudaStream stream;
              const auto dp = Stage(ctx);
              const auto gate = ctx.MakeGloo("gate");
              if (ctx.rank == 0) {
                const at::Tensor tensor = OnGpu(Values(ctx.rank, 64, at::kFloat));
                for (int i = 0; i < 3; ++i) dp->AllReduce(tensor, ReduceOp::kSum, stream);
                dp->Abort();
                stream.Drain();
                EXPECT_THROW(dp->CheckHealth(), Error);
              }
              gate->Barrier();  // rank 1 stays until then
            }));
}
#else
TEST(HostStagedGpuProcesses, NeedsAProgramWithCuda) { GTEST_SKIP() << "the program was built without CUDA"; }
#endif

}  // namespace
}  // namespace trireme::test
