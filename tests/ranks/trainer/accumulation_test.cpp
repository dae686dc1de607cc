// NUM-15: the type in which gradients add up. 256 equal micro-batches have the gradient of one of them; in bf16 each
// small contribution is rounded away against the sum so far, in fp32 nothing is lost.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "tests/ranks/trainer/tiny_run.h"
#include "tests/support/run_threads.h"

namespace trireme::test {
namespace {

// Gradient norm of one step in which every micro-batch of every rank is the same one.
double NormOfEqualMicroBatches(int world, int stage, int64_t accumulation, bool deepspeed_accumulation,
                               DType* accumulated_in = nullptr) {
  double norm = NAN;
  std::mutex mutex;
  const std::string failed = RunThreadRanks(world, [&](ThreadRank& self) {
    TinyRun run{.world = world,
                .zero_stage = stage,
                .accumulation = accumulation,
                .global_batch = 2 * world * accumulation,
                .fp64 = false,
                .bf16 = true};
    TrainerSetup setup = SetupOf(run);
    setup.config.trireme.deepspeed_accumulation = deepspeed_accumulation;
    RankWorld place;
    place.rank = self.rank;
    place.world_size = world;
    place.world = self.MakeCommunicator("world");
    place.make_group = self.GroupMaker();
    Trainer trainer(setup, std::move(place));
    trainer.InitialiseWeights(7);
    trainer.StartStep([](int64_t, const at::Tensor& tokens) {
      int32_t* ids = tokens.mutable_data_ptr<int32_t>();
      for (int64_t i = 0; i < tokens.numel(); ++i) ids[i] = static_cast<int32_t>(i * i % 61);
    });
    const StepResult result = trainer.FinishStep();
    const std::lock_guard lock(mutex);
    norm = result.grad_norm;
    if (accumulated_in != nullptr) *accumulated_in = trainer.plan().dtypes.accumulate;
  });
  EXPECT_EQ(failed, "");
  return norm;
}

class Accumulation : public ::testing::TestWithParam<int> {};

TEST_P(Accumulation, NUM_15_SmallContributionsAreKept) {
  const int stage = GetParam(), world = stage == 0 ? 1 : 2;
  DType ours{}, deepspeeds{};
  const double one = NormOfEqualMicroBatches(world, stage, 1, false);
  const double fp32 = NormOfEqualMicroBatches(world, stage, 256, false, &ours);
  const double bf16 = NormOfEqualMicroBatches(world, stage, 256, true, &deepspeeds);
  EXPECT_EQ(ours, DType::kFloat32);
  EXPECT_EQ(deepspeeds, DType::kBFloat16);
  EXPECT_LE(std::abs(fp32 / one - 1), 1e-6);
  EXPECT_GE(std::abs(bf16 / one - 1), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Stages, Accumulation, ::testing::Values(0, 1, 2, 3), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace trireme::test
