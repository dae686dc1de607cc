// Real processes over Gloo train like one rank: ZeRO for fifty steps in single precision, and layouts of all kinds for
// twelve steps in double precision.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/comm/backends.h"
#include "tests/ranks/trainer/layouts.h"
#include "tests/ranks/trainer/trains_alike.h"
#include "tests/support/run_ranks.h"

namespace trireme::test {
namespace {

RankWorld PlaceOf(RankContext& ctx, const std::string& name) {
  RankWorld place;
  place.rank = ctx.rank;
  place.world_size = ctx.world;
  place.store = ctx.store();
  place.world = ctx.MakeGloo(name + "world");
  place.make_group = [&ctx, name](const std::string& group, const std::vector<int>& ranks) {
    return MakeGlooCommunicator(ctx.store(), ranks, ctx.rank, name + group, std::chrono::seconds(60));
  };
  return place;
}

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
                const TinyRun run = run_of(2, stage);
                Trainer trainer(SetupOf(run), PlaceOf(ctx, "zero" + std::to_string(stage)));
                std::vector<double> losses, norms;
                TrainRank(run, trainer, losses, norms);
                if (ctx.rank != 0) continue;
                EXPECT_LE(RelativeDifference(losses, want.losses), 2e-6) << "ZeRO-" << stage;
                EXPECT_LE(RelativeDifference(norms, want.norms), 1e-5) << "ZeRO-" << stage;
              }
            }));
}

constexpr PipelineSchedule kGPipe = PipelineSchedule::kGPipe, kZeroBubble = PipelineSchedule::kZeroBubble;

const Layout kLayouts[] = {
    {.tp = 2},
    {.tp = 3, .sequence_parallel = true, .model = TinyModel::kLlama},
    {.tp = 2, .sequence_parallel = true, .recompute = Recompute::kFull, .model = TinyModel::kQwen},
    {.pp = 2},
    {.pp = 3, .schedule = kZeroBubble, .model = TinyModel::kGptUntied},
    {.pp = 2, .virtual_stages = 2, .model = TinyModel::kQwen},
    {.pp = 4, .recompute = Recompute::kFull, .schedule = kGPipe},
    {.dp = 2, .pp = 2, .zero_stage = 1, .model = TinyModel::kLlama},
    {.dp = 2, .pp = 2, .zero_stage = 3},
    {.dp = 2, .tp = 2, .sequence_parallel = true, .zero_stage = 2},
    {.dp = 2, .tp = 2, .zero_stage = 3, .model = TinyModel::kLlama},
    {.tp = 2, .pp = 2, .sequence_parallel = true},
};

// The weights that this rank owns against those of one rank, relative to all.
double OwnDifference(Trainer& trainer, const Weights& want) {
  Weights own;
  Collect(trainer, own);
  for (auto& [name, values] : own) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) values[i] = want.at(name)[i];
    }
  }
  for (const auto& [name, values] : want) own.try_emplace(name, values);
  return WeightDifference(own, want);
}

class GlooLayouts : public ::testing::TestWithParam<size_t> {};

TEST_P(GlooLayouts, EqualOneRankInFp64) {
  const Layout& layout = kLayouts[GetParam()];
  const bool sgd = GetParam() % 2 == 1;
  EXPECT_EQ("", RunRanks(layout.world(), 120, [&](RankContext& ctx) {
              const Reference one_rank = ReferenceOf(OneRankRun(layout.model, sgd));
              ASSERT_EQ(one_rank.curve.failed, "");
              TinyRun run = RunOf(layout, one_rank.run);
              if (layout.pp == 1) run.accumulation = 2;  // a collective of processes takes milliseconds
              Trainer trainer(SetupOf(run), PlaceOf(ctx, ""));
              std::vector<double> losses, norms;
              TrainRank(run, trainer, losses, norms);
              EXPECT_LE(RelativeDifference(losses, one_rank.curve.losses), 1e-12);
              EXPECT_LE(RelativeDifference(norms, one_rank.curve.norms), 1e-12);
              EXPECT_LE(OwnDifference(trainer, one_rank.curve.weights), 1e-12);
            }));
}

INSTANTIATE_TEST_SUITE_P(Layouts, GlooLayouts, ::testing::Range<size_t>(0, std::size(kLayouts)),
                         [](const auto& layout) { return Name(kLayouts[layout.param]); });

}  // namespace
}  // namespace trireme::test
