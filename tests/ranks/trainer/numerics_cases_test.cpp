// Cases of numerics (docs/cases.md) that need several layouts of one run.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "tests/ranks/trainer/tiny_run.h"
#include "tests/support/run_threads.h"

namespace trireme::test {
namespace {

double FirstNorm(TinyRun run) {
  run.steps = 1;
  const Curve curve = Train(run);
  EXPECT_EQ(curve.failed, "");
  return curve.failed.empty() ? curve.norms.at(0) : NAN;
}

TEST(GradientNorm, NUM_09_CountsShardedTensorsOfAllTensorRanks) {
  for (const bool fp16 : {false, true}) {
    TinyRun one{.global_batch = 8, .fp64 = false, .bf16 = !fp16, .heads = 4, .fp16 = fp16};
    one.initial_scale_power = 8;
    const double want = FirstNorm(one);
    for (const int64_t tp : {2, 4}) {
      for (const int stage : {0, 1}) {
        TinyRun run = one;
        run.tp = tp;
        run.zero_stage = stage;
        run.world = static_cast<int>(stage == 0 ? tp : 2 * tp);
        EXPECT_NEAR(FirstNorm(run) / want, 1, fp16 ? 1e-3 : 4e-3) << (fp16 ? "fp16" : "bf16") << " tp " << tp;
      }
    }
  }
}

TEST(GradientNorm, NUM_11_CountsATiedWeightOnce) {
  const TinyRun one{.accumulation = 4, .global_batch = 8};
  const double want = FirstNorm(one);
  for (const int stage : {0, 1, 2, 3}) {
    TinyRun run = one;
    run.pp = 2;
    run.world = stage == 0 ? 2 : 4;
    run.accumulation = stage == 0 ? 4 : 2;
    run.zero_stage = stage;
    EXPECT_NEAR(FirstNorm(run) / want, 1, 1e-12) << "ZeRO-" << stage;
  }
}

// 16 samples a step, cut into micro-batches in different ways.
TEST(MicroBatches, NUM_13_NUM_20_LossAndNormDependOnTheBatchAlone) {
  for (const bool bf16 : {false, true}) {
    TinyRun whole{.accumulation = 1, .global_batch = 16, .steps = 2, .fp64 = false, .bf16 = bf16};
    const Curve want = Train(whole);
    ASSERT_EQ(want.failed, "");
    for (const int64_t accumulation : {2, 8, 16}) {
      for (const int64_t pp : {1, 2}) {
        TinyRun run = whole;
        run.accumulation = accumulation;
        run.pp = pp;
        run.world = static_cast<int>(pp);
        const Curve got = Train(run);
        ASSERT_EQ(got.failed, "");
        EXPECT_NEAR(got.norms[0] / want.norms[0], 1, bf16 ? 4e-3 : 1e-6) << accumulation << " pp " << pp;
        EXPECT_NEAR(got.losses[0] / want.losses[0], 1, bf16 ? 1e-3 : 1e-6) << accumulation << " pp " << pp;
      }
    }
  }
}

// Two samples with 2 and 11 tokens that count: the mean is over tokens, however they are cut.
TEST(Loss, NUM_19_EveryTokenCountsTheSame) {
  struct Split {
    int world;
    int64_t accumulation;
  };
  std::vector<StepResult> results;
  for (const Split split : {Split{1, 1}, Split{1, 2}, Split{2, 1}}) {
    StepResult result;
    std::mutex mutex;
    const std::string failed = RunThreadRanks(split.world, [&](ThreadRank& self) {
      RankWorld world;
      world.rank = self.rank;
      world.world_size = self.world;
      world.world = self.MakeCommunicator("world");
      world.make_group = self.GroupMaker();
      Trainer trainer(SetupOf({.world = split.world, .accumulation = split.accumulation, .global_batch = 2}, self.rank),
                      std::move(world));
      trainer.InitialiseWeights(7);
      trainer.StartStep([&](int64_t micro_batch, const at::Tensor& tokens) {
        const int64_t rows = tokens.size(0), columns = tokens.size(1);
        int32_t* ids = tokens.mutable_data_ptr<int32_t>();
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t sample = micro_batch * split.world * rows + self.rank * rows + row;
          for (int64_t i = 0; i < columns; ++i) {
            const bool counts = sample == 1 || i <= 2;
            ids[row * columns + i] = counts ? static_cast<int32_t>((17 * sample + i * i) % 61) : -1;
          }
        }
      });
      const StepResult mine = trainer.FinishStep();
      const std::lock_guard lock(mutex);
      result = mine;
    });
    ASSERT_EQ(failed, "");
    EXPECT_EQ(result.tokens, 13);
    results.push_back(result);
  }
  for (const StepResult& result : results) {
    EXPECT_NEAR(result.loss / results[0].loss, 1, 1e-12);
    EXPECT_NEAR(result.grad_norm / results[0].grad_norm, 1, 1e-12);
  }
}

TEST(VocabularyLoss, NUM_21_FollowsOneRankOverManySteps) {
  TinyRun one{.global_batch = 4, .steps = 100, .fp64 = false, .heads = 4};
  const Curve want = Train(one);
  ASSERT_EQ(want.failed, "");
  for (const int64_t tp : {2, 4}) {
    TinyRun run = one;
    run.tp = tp;
    run.world = static_cast<int>(tp);
    const Curve got = Train(run);
    ASSERT_EQ(got.failed, "");
    EXPECT_LE(RelativeDifference(got.losses, want.losses), 1e-4) << "tp " << tp;
  }
}

TEST(Initialisation, NUM_26_MergedWeightsAreTheSameInEveryLayout) {
  const auto initial = [](TinyRun run) {
    run.steps = 0;
    const Curve curve = Train(run);
    EXPECT_EQ(curve.failed, "");
    return curve.weights;
  };
  const Weights want = initial({.heads = 4});
  ASSERT_FALSE(want.empty());
  for (const int64_t tp : {2, 4}) {
    EXPECT_EQ(initial({.world = static_cast<int>(tp), .heads = 4, .tp = tp}), want) << "tp " << tp;
  }
  EXPECT_EQ(initial({.world = 8, .zero_stage = 3, .global_batch = 16, .heads = 4, .tp = 2, .pp = 2}), want);
}

// Types of sums and of what travels hold in every layout (NUM-15): the norm of 64 equal micro-batches is that of one.
TEST(MicroBatches, NUM_15_HoldsUnderTensorAndPipelineParallelism) {
  for (const TinyRun& layout :
       {TinyRun{.world = 2, .tp = 2}, TinyRun{.world = 2, .pp = 2}, TinyRun{.world = 4, .zero_stage = 2, .pp = 2},
        TinyRun{.world = 4, .zero_stage = 1, .tp = 2, .sequence_parallel = true}}) {
    std::vector<double> norms;
    for (const auto& [accumulation, narrow] : {std::pair{1, false}, {64, false}, {64, true}}) {
      TinyRun run = layout;
      run.heads = 4;
      run.fp64 = false;
      run.bf16 = true;
      run.accumulation = accumulation;
      const int64_t dp = run.world / run.pp / run.tp;
      run.global_batch = 2 * dp * accumulation;
      double norm = NAN;
      std::mutex mutex;
      const std::string failed = RunThreadRanks(run.world, [&, narrow = narrow](ThreadRank& self) {
        TrainerSetup setup = SetupOf(run, self.rank);
        if (narrow) {
          setup.config.data_types.grad_accum_dtype = DType::kBFloat16;
          setup.config.communication_data_type = DType::kBFloat16;
        }
        RankWorld world;
        world.rank = self.rank;
        world.world_size = self.world;
        world.world = self.MakeCommunicator("world");
        world.make_group = self.GroupMaker();
        Trainer trainer(setup, std::move(world));
        EXPECT_EQ(trainer.plan().dtypes.accumulate, narrow ? DType::kBFloat16 : DType::kFloat32);
        EXPECT_EQ(trainer.plan().dtypes.communicate, narrow ? DType::kBFloat16 : DType::kFloat32);
        trainer.InitialiseWeights(7);
        trainer.StartStep([](int64_t, const at::Tensor& tokens) {
          int32_t* ids = tokens.mutable_data_ptr<int32_t>();
          for (int64_t i = 0; i < tokens.numel(); ++i) ids[i] = static_cast<int32_t>(i * i % 61);
        });
        const StepResult result = trainer.FinishStep();
        const std::lock_guard lock(mutex);
        norm = result.grad_norm;
      });
      ASSERT_EQ(failed, "");
      norms.push_back(norm);
    }
    EXPECT_LE(std::abs(norms[1] / norms[0] - 1), 1e-6);
    EXPECT_GE(std::abs(norms[2] / norms[0] - 1), 1e-3);
  }
}

// An infinity in one gradient of one rank, each in turn, skips the step on all.
TEST(OverflowLayouts, NUM_05_OfAnyRankIsSeenByAll) {
  for (const TinyRun& layout :
       {TinyRun{.world = 8, .zero_stage = 0, .heads = 4, .layers = 4, .tp = 2, .pp = 2},
        TinyRun{.world = 8, .zero_stage = 1, .heads = 4, .layers = 4, .tp = 2, .pp = 2, .sequence_parallel = true},
        TinyRun{.world = 4, .zero_stage = 3, .heads = 4, .tp = 2}}) {
    for (const bool fp16 : {false, true}) {
      TinyRun run = layout;
      run.fp64 = false;
      run.fp16 = fp16;
      run.bf16 = !fp16;
      run.initial_scale_power = 8;
      run.hysteresis = 1;
      run.accumulation = 2;
      run.global_batch = 8;
      run.steps = run.world + 1;  // the first is sound
      for (int rank = 0; rank < run.world; ++rank) {
        const int stage = rank / (run.world / static_cast<int>(run.pp));
        run.inject_values.push_back({.step = rank + 1,
                                     .rank = rank,
                                     .value = {.unit = stage == 0 ? 1 : 4,
                                               .micro_batch = rank % 2,
                                               .backward = true,
                                               .value = rank % 2 == 0 ? INFINITY : -INFINITY}});
      }
      const Curve got = Train(run);
      ASSERT_EQ(got.failed, "");
      EXPECT_TRUE(got.ranks_agree);
      EXPECT_TRUE(got.replicas_equal);
      EXPECT_EQ(got.skips.later, run.world) << "each step but the first";
      TinyRun first = run;
      first.steps = 1;
      EXPECT_EQ(got.weights, Train(first).weights) << "skipped steps change nothing";
    }
  }
}

}  // namespace
}  // namespace trireme::test
