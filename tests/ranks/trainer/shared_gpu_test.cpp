// Ranks that share one GPU train like one rank on the CPU: threads with lanes of their own, whose communication goes
// through pinned host memory.
#include <gtest/gtest.h>

#include "engine/comm/host_staged.h"
#include "tests/ranks/trainer/trains_alike.h"

#ifdef TRIREME_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace trireme::test {
namespace {

bool HasGpu() {
#ifdef TRIREME_HAS_CUDA
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
#else
  return false;
#endif
}

TinyRun OnOneGpu(TinyRun run) {
  run.device = at::Device(at::kCUDA, 0);
  run.carry = [](std::unique_ptr<Communicator> host) {
    return MakeHostStagedCommunicator(std::move(host), MakeCudaStagingDevice(GpuSharers::kThreads));
  };
  return run;
}

class SharedGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "this machine has no GPU, or the program was built without CUDA";
  }
  void ExpectEqualsOneRank(const TinyRun& layout) {
    TinyRun one = layout;
    one.world = 1;
    one.zero_stage = 0;
    one.tp = one.pp = one.virtual_stages = 1;
    one.sequence_parallel = false;
    one.schedule = PipelineSchedule::kOneForwardOneBackward;
    const Reference reference = ReferenceOf(one);
    TinyRun run = OnOneGpu(layout);
    run.clip = reference.run.clip;
    ExpectTrainsAlike(Train(run), reference.curve);
  }
};

TEST_F(SharedGpu, ZeRO0To3OfTwoRanks) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    ExpectEqualsOneRank({.world = 2, .zero_stage = stage, .accumulation = 3});
    if (HasFailure()) return;
  }
}

TEST_F(SharedGpu, TensorParallel) { ExpectEqualsOneRank({.world = 2, .accumulation = 3, .heads = 4, .tp = 2}); }

TEST_F(SharedGpu, PipelineWithTiedWeights) { ExpectEqualsOneRank({.world = 2, .accumulation = 6, .pp = 2}); }

TEST_F(SharedGpu, ZeroBubblePipeline) {
  ExpectEqualsOneRank(
      {.world = 2, .accumulation = 6, .tied = false, .pp = 2, .schedule = PipelineSchedule::kZeroBubble});
}

TEST_F(SharedGpu, TensorParallelPipelineOfFourRanks) {
  ExpectEqualsOneRank({.world = 4, .accumulation = 6, .heads = 4, .tp = 2, .pp = 2});
}

TEST_F(SharedGpu, DataParallelPipelineUnderZeRO3OfFourRanks) {
  ExpectEqualsOneRank({.world = 4, .zero_stage = 3, .accumulation = 3, .pp = 2});
}

TEST_F(SharedGpu, ARankThatFailsIsNamedAndNothingHangs) {
  const auto comms = MakeInProcessWorld(2, std::chrono::seconds(60));
  comms->Inject({.op = OpKind::kAllReduce, .rank = 1, .nth = 5, .kind = Fault::Kind::kThrow});
  const Curve curve = Train(OnOneGpu({.world = 2, .accumulation = 3}), comms);
  EXPECT_NE(curve.failed.find("COM015"), std::string::npos) << curve.failed;
}

}  // namespace
}  // namespace trireme::test
