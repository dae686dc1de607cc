// What several ranks hold is compared: a damaged copy ends the run before its weights are trained on for long, or
// saved.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/base/error.h"
#include "engine/trainer/replicas.h"
#include "tests/ranks/trainer/tiny_run.h"
#include "tests/support/run_threads.h"

namespace trireme::test {
namespace {

struct Damage {
  std::string name;
  TinyRun run;
  int rank = 0, unit = 0;
  std::string parameter;  // whose first element on that rank changes by one bit
  std::string ranks;      // as the message groups them; "": nobody else holds it, so nobody can tell
};

class Replicas : public ::testing::TestWithParam<Damage> {};

// Compared every 4 steps; damaged after the third.
TEST_P(Replicas, NUM_24_ADamagedCopyEndsTheRun) {
  const Damage& damage = GetParam();
  TinyRun run = damage.run;
  run.global_batch = 8;
  run.steps = 6;
  run.fp64 = false;
  run.check_replicas_every = 4;
  const std::string failed = RunThreadRanks(run.world, [&](ThreadRank& self) {
    RankWorld world;
    world.rank = self.rank;
    world.world_size = self.world;
    world.world = self.MakeCommunicator("world");
    world.make_group = self.GroupMaker();
    Trainer trainer(SetupOf(run, self.rank), std::move(world));
    trainer.InitialiseWeights(7);
    while (trainer.steps_finished() < run.steps) {
      if (trainer.steps_finished() == 4 && self.rank == damage.rank) {
        trainer.executor().Drain();  // a step's result comes before its last gathers
        const at::Tensor& flat = trainer.state().weights(damage.unit);
        for (const Segment& segment : trainer.plan().units[static_cast<size_t>(damage.unit)].segments) {
          if (segment.parameter.name != damage.parameter) continue;
          flat.narrow(0, segment.begin, 1).view(at::kInt).bitwise_xor_(1);
        }
      }
      trainer.StartStep(SyntheticFill(trainer));
      trainer.FinishStep();
    }
    trainer.executor().Drain();
  });
  if (damage.ranks.empty()) {
    EXPECT_EQ(failed, "");
    return;
  }
  EXPECT_NE(failed.find("TRN050"), std::string::npos) << failed;
  EXPECT_NE(failed.find("after 4 steps"), std::string::npos) << failed;
  EXPECT_NE(failed.find(damage.parameter + " of "), std::string::npos) << failed;
  EXPECT_NE(failed.find(" on ranks " + damage.ranks), std::string::npos) << failed;
  EXPECT_NE(failed.find("(1 of "), std::string::npos) << failed;
}

std::vector<Damage> Damages() {
  const std::string norm = "transformer.h.1.ln_1.weight", matrix = "transformer.h.1.mlp.c_fc.weight";
  const TinyRun tp{.world = 2, .heads = 4, .tp = 2};
  TinyRun sequence = tp;
  sequence.sequence_parallel = true;
  return {{"one", {}, 0, 2, matrix, ""},
          {"zero0", {.world = 2}, 1, 2, matrix, "1"},
          {"zero1", {.world = 4, .zero_stage = 1}, 2, 2, norm, "2"},
          {"zero2", {.world = 2, .zero_stage = 2}, 0, 3, "transformer.h.2.ln_2.bias", "0"},
          {"tensor_norm", tp, 1, 2, norm, "1"},
          {"tensor_matrix", tp, 1, 2, matrix, ""},
          {"sequence_norm", sequence, 1, 2, norm, "1"},
          {"tensor_zero3", {.world = 4, .zero_stage = 3, .heads = 4, .tp = 2}, 0, 2, norm, "0"},
          {"tied", {.world = 2, .pp = 2}, 1, 0, "transformer.wte.weight", "1"},
          {"all",
           {.world = 8, .zero_stage = 1, .heads = 4, .layers = 4, .tp = 2, .pp = 2},
           3,
           1,
           "transformer.h.0.mlp.c_fc.weight",
           "3"}};
}

INSTANTIATE_TEST_SUITE_P(Layouts, Replicas, ::testing::ValuesIn(Damages()),
                         [](const auto& damage) { return damage.param.name; });

TEST(Checkpoints, AreWrittenOnlyOfEqualReplicas) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("trireme_replicas_" + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  TinyRun run{.world = 2, .zero_stage = 1, .global_batch = 8};
  const std::string failed = RunThreadRanks(run.world, [&](ThreadRank& self) {
    RankWorld world;
    world.rank = self.rank;
    world.world_size = self.world;
    world.world = self.MakeCommunicator("world");
    world.make_group = self.GroupMaker();
    Trainer trainer(SetupOf(run, self.rank), std::move(world));
    trainer.InitialiseWeights(7);
    trainer.StartStep(SyntheticFill(trainer));
    trainer.FinishStep();
    trainer.executor().Drain();  // as above
    if (self.rank == 1) trainer.state().weights(1).narrow(0, 0, 1).add_(1);
    trainer.Save(folder, std::nullopt);
  });
  EXPECT_NE(failed.find("TRN050"), std::string::npos) << failed;
  EXPECT_FALSE(std::filesystem::exists(folder / "latest"));
  std::filesystem::remove_all(folder);
}

TEST(Parameters, MustAllBeOwned) {
  const std::string failed = RunThreadRanks(2, [&](ThreadRank& self) {
    RankWorld world;
    world.rank = self.rank;
    world.world_size = self.world;
    world.world = self.MakeCommunicator("world");
    world.make_group = self.GroupMaker();
    Trainer trainer(SetupOf({.world = 2, .zero_stage = 1, .global_batch = 8}, self.rank), std::move(world));
    RequireAllParameters(trainer.state(), trainer.world());
    Plan plan = trainer.plan();
    plan.num_parameters += 1;
    const RankState state(plan, self.rank, at::kCPU);
    RequireAllParameters(state, trainer.world());
  });
  EXPECT_NE(failed.find("TRN051"), std::string::npos) << failed;
}

}  // namespace
}  // namespace trireme::test
