// A step that is not finite is made once more, and the first value that is not is named, on whichever rank it arose;
// training goes on as if nobody had looked.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "tests/ranks/trainer/tiny_run.h"
#include "tests/support/run_threads.h"

namespace trireme::test {
namespace {

// One unit on one rank, in micro-batch 1 of step 7.
struct Injection {
  std::string name;
  TinyRun run;
  int rank = 0, unit = 0;
  bool backward = false;
  double value = NAN;
  std::string tensor;  // as the message names it
  std::string place;
};

class FirstBadValue : public ::testing::TestWithParam<Injection> {};

TEST_P(FirstBadValue, NUM_01_IsNamedWithUnitRankMicroBatchAndStep) {
  const Injection& injection = GetParam();
  TinyRun run = injection.run;
  run.accumulation = 3;
  run.global_batch = 12;
  run.inject_values = {{.step = 7,
                        .rank = injection.rank,
                        .value = {injection.unit, /*micro_batch=*/1, injection.backward, injection.value}}};
  const std::string failed = Train(run).failed;
  EXPECT_NE(failed.find("TRN005"), std::string::npos) << failed;
  EXPECT_NE(failed.find("step 7"), std::string::npos) << failed;
  const std::string what = std::string("first bad value: ") + (std::isnan(injection.value) ? "NaN" : "infinity") +
                           " in " + injection.tensor + " (element 0), " +
                           (injection.backward ? "backward" : "forward") + " of micro-batch 1 on " + injection.place;
  EXPECT_NE(failed.find(what), std::string::npos) << failed << "\nwants " << what;
}

std::vector<Injection> Injections() {
  const std::string output = "the output of transformer.h.1", input = "the gradient of the input of transformer.h.1";
  std::vector<Injection> all = {
      {"one", {}, 0, 2, false, NAN, output, "rank 0"},
      {"one_infinity", {}, 0, 2, false, INFINITY, output, "rank 0"},
      {"one_backward", {}, 0, 2, true, NAN, input, "rank 0"},
      {"one_embedding", {}, 0, 0, false, NAN, "the output of embedding", "rank 0"},
      {"one_embedding_backward", {}, 0, 0, true, NAN, "the gradient of transformer.wte.weight", "rank 0"},
      {"one_loss", {}, 0, 4, false, NAN, "the loss", "rank 0"},
      {"recompute", {.recompute = Recompute::kFull}, 0, 2, false, NAN, output, "rank 0"},
      {"cheap", {.recompute = Recompute::kCheap}, 0, 2, false, NAN, output, "rank 0"},
      {"pipeline",
       {.world = 2, .pp = 2},
       1,
       4,
       true,
       NAN,
       "the gradient of the input of head",
       "rank 1 (pp 1, dp 0, tp 0)"},
      {"tensor", {.world = 2, .heads = 4, .tp = 2}, 1, 2, false, NAN, output, "rank 1 (pp 0, dp 0, tp 1)"},
      {"sequence",
       {.world = 2, .heads = 4, .tp = 2, .sequence_parallel = true},
       1,
       2,
       true,
       INFINITY,
       input,
       "rank 1 (pp 0, dp 0, tp 1)"},
      {"zero_bubble",
       {.world = 2, .pp = 2, .schedule = PipelineSchedule::kZeroBubble},
       0,
       1,
       true,
       NAN,
       "the gradient of the input of transformer.h.0",
       "rank 0 (pp 0, dp 0, tp 0)"},
      {"all",
       {.world = 8, .zero_stage = 1, .heads = 4, .layers = 4, .tp = 2, .pp = 2},
       3,
       1,
       false,
       NAN,
       "the output of transformer.h.0",
       "rank 3 (pp 0, dp 1, tp 1)"},
  };
  for (const int stage : {0, 1, 2, 3}) {
    all.push_back({"zero" + std::to_string(stage),
                   {.world = 2, .zero_stage = stage},
                   1,
                   3,
                   stage % 2 == 1,
                   NAN,
                   stage % 2 == 1 ? "the gradient of the input of transformer.h.2" : "the output of transformer.h.2",
                   "rank 1 (pp 0, dp 1, tp 0)"});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Layouts, FirstBadValue, ::testing::ValuesIn(Injections()),
                         [](const auto& injection) { return injection.param.name; });

struct Outcome {
  std::string failed, found;
  std::vector<double> losses;
  std::vector<bool> skipped;
  int64_t applied = 0;
  Weights weights;
};

// With `ahead` steps issued before the result of the first is asked for.
Outcome TrainAhead(const TinyRun& run, int64_t ahead, bool by_hand = false) {
  Outcome outcome;
  std::mutex mutex;
  std::vector<std::unique_ptr<Trainer>> trainers(static_cast<size_t>(run.world));
  outcome.failed = RunThreadRanks(run.world, [&](ThreadRank& self) {
    RankWorld world;
    world.rank = self.rank;
    world.world_size = self.world;
    world.world = self.MakeCommunicator("world");
    world.make_group = self.GroupMaker();
    std::unique_ptr<Trainer>& trainer = trainers[static_cast<size_t>(self.rank)];
    trainer = std::make_unique<Trainer>(SetupOf(run, self.rank), std::move(world));
    trainer->InitialiseWeights(7);
    while (trainer->steps_finished() < run.steps) {
      while (trainer->steps_started() < std::min(run.steps, trainer->steps_finished() + ahead)) {
        if (by_hand) {
          for (int64_t m = 0; m < run.accumulation; ++m) {
            trainer->Forward(SyntheticFill(*trainer), m);
            trainer->Backward(m);
          }
          trainer->Step();
        } else {
          trainer->StartStep(SyntheticFill(*trainer));
        }
      }
      const StepResult result = trainer->FinishStep();
      if (self.rank != 0) continue;
      outcome.losses.push_back(std::isfinite(result.loss) ? result.loss : -1);
      outcome.skipped.push_back(result.skipped);
      outcome.applied = result.applied_steps;
      outcome.found = trainer->first_bad_value();
    }
    trainer->executor().Drain();
  });
  if (outcome.failed.empty()) {
    for (const auto& trainer : trainers) Collect(*trainer, outcome.weights);
  }
  return outcome;
}

class Looking : public ::testing::TestWithParam<TinyRun> {};

// The step after the one that is looked at was already issued: it counts only once, and sees what it would have seen.
TEST_P(Looking, NUM_05_ChangesNothingAndTheStepAheadIsMadeAgain) {
  TinyRun run = GetParam();
  run.fp64 = false;
  run.bf16 = true;
  run.accumulation = 2;
  run.global_batch = 8;
  run.steps = 6;
  run.dropout = 0.1;
  run.find_bad_value = false;
  run.inject_values = {{.step = 2, .rank = run.world - 1, .value = {run.pp > 1 ? 3 : 1, 1, false, NAN}}};
  const Outcome blind = TrainAhead(run, 2);
  ASSERT_EQ(blind.failed, "");
  EXPECT_EQ(blind.found, "");
  EXPECT_EQ(blind.skipped, (std::vector<bool>{false, false, true, false, false, false}));
  run.find_bad_value = true;
  for (const int64_t ahead : {1, 2}) {
    const Outcome looking = TrainAhead(run, ahead);
    ASSERT_EQ(looking.failed, "");
    EXPECT_NE(looking.found.find("first bad value: NaN in the output of"), std::string::npos) << looking.found;
    EXPECT_EQ(looking.losses, blind.losses);
    EXPECT_EQ(looking.skipped, blind.skipped);
    EXPECT_EQ(looking.applied, 5);
    EXPECT_EQ(looking.weights, blind.weights);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Looking,
                         ::testing::Values(TinyRun{}, TinyRun{.world = 2, .zero_stage = 2},
                                           TinyRun{.world = 4, .zero_stage = 3, .heads = 4, .tp = 2},
                                           TinyRun{.world = 4, .zero_stage = 1, .pp = 2}));

TEST(StepByHand, IsLookedAtToo) {
  TinyRun run{.accumulation = 2, .global_batch = 8, .steps = 4, .fp64 = false, .bf16 = true};
  run.inject_values = {{.step = 2, .value = {3, 1, true, INFINITY}}};
  const Outcome got = TrainAhead(run, 1, /*by_hand=*/true), whole = TrainAhead(run, 1);
  ASSERT_EQ(got.failed, "");
  EXPECT_EQ(got.found,
            "first bad value: infinity in the gradient of the input of transformer.h.2 (element 0), backward of "
            "micro-batch 1 on rank 0");
  EXPECT_EQ(got.weights, whole.weights);
}

// A dynamic loss scale comes down by overflows: nobody looks until it is at its floor, or the loss itself overflows.
TEST(LossScale, NUM_03_OverflowsThatASmallerScaleCuresAreNotLookedAt) {
  TinyRun run{.accumulation = 1, .global_batch = 2, .steps = 4, .fp64 = false, .fp16 = true};
  run.initial_scale_power = 10;
  run.hysteresis = 1;
  run.inject_overflow = {0, 1, 3};
  EXPECT_EQ(TrainAhead(run, 2).found, "");
  run.inject_overflow = {};
  run.inject_values = {{.step = 1, .value = {2, 0, false, NAN}}};
  const Outcome bad_loss = TrainAhead(run, 2);
  EXPECT_EQ(bad_loss.failed, "");
  EXPECT_NE(bad_loss.found.find("NaN in the output of transformer.h.1"), std::string::npos) << bad_loss.found;
}

// What a repeat does not show was no fault of the numbers.
TEST(Memory, AFaultThatIsNotRepeatedIsSaidToBeNone) {
  TinyRun run{.fp64 = false, .bf16 = true};
  const std::string failed = RunThreadRanks(1, [&](ThreadRank& self) {
    RankWorld world;
    world.world = self.MakeCommunicator("world");
    world.make_group = self.GroupMaker();
    Trainer trainer(SetupOf(run), std::move(world));
    trainer.InitialiseWeights(7);
    trainer.Forward(SyntheticFill(trainer), 0);
    trainer.Backward(0);
    trainer.state().own_gradient(1).narrow(0, 0, 1).fill_(INFINITY);
    trainer.Step();
    EXPECT_TRUE(trainer.FinishStep().skipped);
    EXPECT_NE(trainer.first_bad_value().find("is not repeatable"), std::string::npos) << trainer.first_bad_value();
  });
  EXPECT_EQ(failed, "");
}

}  // namespace
}  // namespace trireme::test
