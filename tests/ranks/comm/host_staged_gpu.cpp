// Host-staged communication of ranks that are threads of one process and share a GPU: the calls wait, no stream does.
#include <gtest/gtest.h>

#include "tests/support/run_threads.h"

#ifdef TRIREME_HAS_CUDA
#include "tests/ranks/comm/gpu_streams.h"
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

std::unique_ptr<Communicator> Stage(ThreadRank& self, int64_t staging_bytes = kStagingBytes) {
  return MakeHostStagedCommunicator(self.MakeCommunicator("dp0"), MakeCudaStagingDevice(GpuSharers::kThreads),
                                    staging_bytes);
}

TEST_F(HostStagedGpu, EveryOperation) {
  for (const int world : {2, 3, 4}) {
    EXPECT_EQ("", RunThreadRanks(world, [](ThreadRank& self) {
                const auto dp = Stage(self);
                for (const int64_t n : {0, 1, 1021, 300'007}) {
                  for (const at::ScalarType type : ReducibleTypes()) CheckOnStreams(*dp, n, type);
                }
              }));
  }
}

TEST_F(HostStagedGpu, LongTensorsGoInParts) {
  EXPECT_EQ("", RunThreadRanks(2, [](ThreadRank& self) { CheckOnStreams(*Stage(self, 4096), 20'011, at::kFloat); }));
}

TEST_F(HostStagedGpu, TheDefaultStreamWaitsByItself) {
  EXPECT_EQ("", RunThreadRanks(2, [](ThreadRank& self) {
              const auto dp = Stage(self);
              const at::Tensor tensor = OnGpu(Values(self.rank, 1021, at::kFloat));
              dp->AllReduce(tensor, ReduceOp::kSum);
              EXPECT_TRUE(tensor.cpu().equal(Reduced(2, 1021, at::kFloat, ReduceOp::kSum)));
            }));
}
#else
TEST(HostStagedGpu, NeedsAProgramWithCuda) { GTEST_SKIP() << "the program was built without CUDA"; }
#endif

}  // namespace
}  // namespace trireme::test
