// Real processes over Gloo follow one rank: fp32, 50 steps.
#include <gtest/gtest.h>

#include "tests/ranks/trainer/tiny_run.h"
#include "tests/support/run_ranks.h"

namespace trireme::test {
namespace {

TEST(GlooProcesses, Zero0To3FollowOneRank) {
  EXPECT_EQ("", RunRanks(2, 240, [](RankContext& ctx) {
              const auto run_of = [](int world, int stage) {
                return TinyRun{.world = world,
                               .zero_stage = stage,
                               .accumulation = 2,
                               .global_batch = 8,
                               .steps = 50,
                               .fp64 = false,
                               .clip = 0.5};
              };
              Curve want;
              if (ctx.rank == 0) want = Train(run_of(1, 0));
              for (int stage = 0; stage <= 3; ++stage) {
                RankWorld place;
                place.rank = ctx.rank;
                place.world_size = ctx.world;
                place.store = ctx.store();
                place.world = ctx.MakeGloo("world" + std::to_string(stage));
                const TinyRun run = run_of(2, stage);
                Trainer trainer(SetupOf(run), std::move(place));
                std::vector<double> losses, norms;
                TrainRank(run, trainer, losses, norms);
                if (ctx.rank != 0) continue;
                EXPECT_LE(RelativeDifference(losses, want.losses), 2e-6) << "ZeRO-" << stage;
                EXPECT_LE(RelativeDifference(norms, want.norms), 1e-5) << "ZeRO-" << stage;
              }
            }));
}

}  // namespace
}  // namespace trireme::test
