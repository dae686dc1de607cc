// One rank on a GPU trains like one rank on the CPU: lanes as streams, kernels, host copies, trace, save and resume.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/comm/backends.h"
#include "tests/ranks/trainer/tiny_run.h"

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

struct OnGpu {
  std::vector<double> losses, norms;
  Weights weights;
};

OnGpu TrainOnGpu(const TinyRun& run, const std::string& trace = "") {
  RankWorld place;
  place.device = at::Device(at::kCUDA, 0);
  place.world = MakeNcclCommunicator(nullptr, {0}, 0, "world");
  Trainer trainer(SetupOf(run), std::move(place));
  auto tracer = std::make_shared<Tracer>(0, true, trainer.plan());
  if (!trace.empty()) trainer.executor().set_tracer(tracer);
  OnGpu result;
  TrainRank(run, trainer, result.losses, result.norms);
  Collect(trainer, result.weights);
  if (!trace.empty()) tracer->Write(trace);
  return result;
}

class Gpu : public ::testing::TestWithParam<Recompute> {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "this machine has no GPU, or the program was built without CUDA";
  }
};

TEST_P(Gpu, OneRankEqualsTheCpuInFp64) {
  for (const bool sgd : {false, true}) {
    const TinyRun run{.accumulation = 3, .sgd = sgd, .clip = sgd ? 0 : 0.5, .recompute = GetParam()};
    const Curve want = Train(run);
    const OnGpu got = TrainOnGpu(run);
    EXPECT_LE(RelativeDifference(got.losses, want.losses), 1e-12);
    EXPECT_LE(RelativeDifference(got.norms, want.norms), 1e-12);
    EXPECT_LE(WeightDifference(got.weights, want.weights), 1e-12);
  }
}

TEST_P(Gpu, AdagradLionAndLambEqualTheCpuInFp64) {
  for (const OptimizerType type : {OptimizerType::kAdagrad, OptimizerType::kLion, OptimizerType::kLamb}) {
    TinyRun run{.accumulation = 3, .clip = 0.5, .recompute = GetParam()};
    run.optimizer = OptimizerConfig{.type = type, .lr = 3e-3, .weight_decay = 0.1, .initial_accumulator_value = 1e-3};
    const Curve want = Train(run);
    const OnGpu got = TrainOnGpu(run);
    EXPECT_LE(RelativeDifference(got.losses, want.losses), 1e-12) << Name(type);
    EXPECT_LE(WeightDifference(got.weights, want.weights), 1e-12) << Name(type);
  }
}

TEST_P(Gpu, EvaluationsAndTracesLeaveTrainingAlone) {
  TinyRun run{.accumulation = 3, .fp64 = false, .clip = 0.5, .recompute = GetParam()};
  const OnGpu want = TrainOnGpu(run);
  run.evaluates = true;
  const std::string trace =
      std::filesystem::temp_directory_path() / ("trireme_gpu_" + std::to_string(::getpid()) + ".json");
  const OnGpu got = TrainOnGpu(run, trace);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.weights, want.weights);
  EXPECT_GT(std::filesystem::file_size(trace), 10000u);
  std::filesystem::remove(trace);
}

TEST_P(Gpu, SavedOnTheGpuResumesOnCpuRanks) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("trireme_gpu_" + std::to_string(::getpid()));
  TinyRun run{.accumulation = 3, .clip = 0.5, .recompute = GetParam()};
  const OnGpu want = TrainOnGpu(run);
  run.steps = 5;
  run.save = folder;
  TrainOnGpu(run);
  const Curve got = Train({.world = 2, .zero_stage = 3, .accumulation = 1, .clip = 0.5, .load = folder});
  std::filesystem::remove_all(folder);
  ASSERT_EQ(got.failed, "");
  EXPECT_LE(RelativeDifference(got.losses, {want.losses.begin() + 5, want.losses.end()}), 1e-12);
  EXPECT_LE(WeightDifference(got.weights, want.weights), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Recomputation, Gpu, ::testing::Values(Recompute::kNone, Recompute::kFull));

}  // namespace
}  // namespace trireme::test
