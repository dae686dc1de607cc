// Cases of layouts (docs/cases.md) that a plan alone shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/base/error.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

using testing::PlanOf;
using testing::SmallPlan;

TEST(Stages, LAY_06_ABigVocabularyCountsAndTheSplitCanBeGivenByHand) {
  SmallPlan small{.layers = 8, .hidden = 64, .vocab = 250'000, .micro_batches = 4, .ranks = 4, .pp = 4};
  small.tied = false;
  small.partition = "layers:0,1,4,7";
  const Plan by_hand = PlanOf(small);
  EXPECT_EQ(by_hand.stages, (std::vector<UnitRange>{{0, 1}, {2, 4}, {5, 7}, {8, 9}}));
  small.partition = "parameters";
  const Plan balanced = PlanOf(small);
  const auto layers = [&](size_t stage) { return balanced.stages[stage].last - balanced.stages[stage].first; };
  EXPECT_LE(layers(0), 1) << "the embedding is as much as all layers";
  EXPECT_LE(layers(3), 1) << "and so is the head";
}

TEST(Vocabulary, LAY_09_IsPaddedOnceFromItsTrueSize) {
  for (const int64_t tp : {1, 2, 4, 8}) {
    ModelSpec model;
    model.vocab_size = 151'936;
    PadVocabulary(model, tp);
    const int64_t once = model.padded_vocab_size;
    EXPECT_EQ(once % (128 * tp), 0);
    EXPECT_LT(once, 151'936 + 128 * tp);
    PadVocabulary(model, tp);
    EXPECT_EQ(model.padded_vocab_size, once);
  }
}

TEST(Topology, LAY_10_AWorldThatDoesNotFitNamesEveryFactorAndLegalWorlds) {
  for (const auto& [world, tp, pp] : {std::tuple{6, 4, 1}, {8, 2, 3}}) {
    Config config = testing::ConfigOf({});
    config.tensor_parallel.tp_size = tp;
    config.pipeline_parallel.pp_size = pp;
    PlanInputs inputs;
    inputs.world_size = world;
    inputs.sequence_length = 8;
    try {
      MakePlan(config, testing::ModelOf({.heads = 4}), inputs);
      ADD_FAILURE() << world << " ranks";
    } catch (const Error& error) {
      EXPECT_EQ(error.id(), "PLN002");
      const std::string text = error.what();
      for (const std::string& part : {std::to_string(world) + " ranks", "tp_size " + std::to_string(tp),
                                      "pp_size " + std::to_string(pp), "multiple of " + std::to_string(tp * pp)}) {
        EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
      }
    }
  }
}

// rank = (pp * dp_size + dp) * tp_size + tp, and back.
TEST(Topology, LAY_12_RanksAndCoordinatesAreOneToOneAndTensorNeighboursAreAdjacent) {
  const Topology topology{.pp_size = 2, .dp_size = 2, .tp_size = 2};
  std::set<int> seen;
  for (int pp = 0; pp < 2; ++pp) {
    for (int dp = 0; dp < 2; ++dp) {
      for (int tp = 0; tp < 2; ++tp) {
        const int rank = topology.RankOf({pp, dp, tp});
        EXPECT_EQ(rank, (pp * 2 + dp) * 2 + tp);
        const Topology::Coordinate at = topology.CoordinateOf(rank);
        EXPECT_EQ(std::tuple(at.pp_rank, at.dp_rank, at.tp_rank), std::tuple(pp, dp, tp));
        seen.insert(rank);
      }
    }
  }
  EXPECT_EQ(seen.size(), 8u);
}

}  // namespace
}  // namespace trireme
