// Cases of layouts (docs/cases.md) that a plan alone shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/plan/notes.h"
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

TEST(LayoutNotes, LAY_13_FewerMicroBatchesThanPipelineRanksShowTheBubble) {
  testing::SmallPlan small;
  small.layers = 8;
  small.ranks = small.pp = 8;
  small.micro_batches = 1;
  const std::vector<std::string> notes = LayoutNotes(testing::PlanOf(small), 8);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("1 micro-batch a step on 8 pipeline ranks: the bubble is 88 %"), std::string::npos)
      << notes[0];
  EXPECT_NE(notes[0].find("gradient_accumulation_steps 32 it is 18 %"), std::string::npos) << notes[0];
  small.micro_batches = 8;
  EXPECT_TRUE(LayoutNotes(testing::PlanOf(small), 8).empty());
}

TEST(LayoutNotes, TensorParallelGroupsThatSpanNodesHaveTheirPrice) {
  testing::SmallPlan small;
  small.heads = 4;
  small.hidden = 24;
  small.vocab = 64;
  small.ranks = small.tp = 4;
  Plan plan = testing::PlanOf(small);
  plan.traffic.tensor_parallel = 21'750'000'000;
  EXPECT_TRUE(LayoutNotes(plan, 4).empty());
  const std::vector<std::string> notes = LayoutNotes(plan, 2);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("groups of 4 ranks span nodes of 2"), std::string::npos) << notes[0];
  EXPECT_NE(notes[0].find("takes 1 s a step"), std::string::npos) << notes[0];
  // A third of it: (2 - 1) / 2 of half the layers' tensors, for (4 - 1) / 4 of all.
  EXPECT_NE(notes[0].find("groups of 2 with 2 times the pipeline stages send 6.75 GiB, inside a node at 235 GB/s in "
                          "0.0309 s"),
            std::string::npos)
      << notes[0];
  EXPECT_NE(notes[0].find("tp_size to 2 and pipeline_parallel.pp_size to 2"), std::string::npos) << notes[0];
  const std::string alone = LayoutNotes(plan, 3).at(0);
  EXPECT_NE(alone.find("without tensor parallelism nothing is sent there. fix: set tensor_parallel.tp_size to 1"),
            std::string::npos)
      << alone;
  const std::string described = LayoutNotes(plan, 2, {2.175e9, 43.5e9, " a rank"}).at(0);
  EXPECT_NE(described.find("at 2.2 GB/s a rank that takes 10 s a step"), std::string::npos) << described;
  EXPECT_NE(described.find("inside a node at 44 GB/s in 0.167 s"), std::string::npos) << described;
}

// "... fix: set tensor_parallel.tp_size to 2 and ...": the number of a key; `otherwise` where it is not named.
int64_t Named(const std::string& note, const std::string& key, int64_t otherwise) {
  const size_t fix = note.find("fix: set "), at = note.find(key + " to ", fix);
  return at == std::string::npos ? otherwise : std::stoll(note.substr(at + key.size() + 4));
}

// What the note names in place of groups across nodes is planned: it can be, with groups inside nodes and the same
// batch.
TEST(LayoutNotes, TheLayoutThatIsNamedCanBe) {
  struct Shape {
    int64_t layers, tp, pp, dp, micro, micro_batches, virtual_stages, ranks_per_node;
    const char* named;
  };
  const Shape shapes[] = {
      {4, 8, 1, 1, 1, 1, 1, 2, "set tensor_parallel.tp_size to 2 and pipeline_parallel.pp_size to 4"},
      {2, 8, 1, 1, 1, 4, 1, 2,
       "set tensor_parallel.tp_size to 2, pipeline_parallel.pp_size to 2 and gradient_accumulation_steps to 2"},
      {2, 8, 2, 1, 1, 4, 1, 4, "set tensor_parallel.tp_size to 4 and gradient_accumulation_steps to 2"},
      {2, 4, 2, 1, 3, 2, 1, 2, "set tensor_parallel.tp_size to 2 and gradient_accumulation_steps to 1"},
      {1, 4, 1, 2, 2, 1, 1, 2, "set tensor_parallel.tp_size to 2 and train_micro_batch_size_per_gpu to 1"},
      {8, 4, 2, 1, 1, 4, 2, 2, "set tensor_parallel.tp_size to 2 and pipeline_parallel.pp_size to 4"},
      {8, 4, 2, 1, 1, 2, 2, 2,
       "set tensor_parallel.tp_size to 2, pipeline_parallel.pp_size to 4 and trireme.pipeline.virtual_stages to 1"},
      {2, 8, 1, 1, 1, 1, 1, 4, "set tensor_parallel.tp_size to 4 and pipeline_parallel.pp_size to 2"}};
  for (const Shape& shape : shapes) {
    testing::SmallPlan small;
    small.layers = shape.layers;
    small.heads = 8;
    small.hidden = 32;
    small.vocab = 64;
    small.tp = shape.tp;
    small.pp = shape.pp;
    small.micro = shape.micro;
    small.micro_batches = shape.micro_batches;
    small.virtual_stages = shape.virtual_stages;
    small.ranks = shape.tp * shape.pp * shape.dp;
    const Plan plan = testing::PlanOf(small);
    const std::string note = LayoutNotes(plan, shape.ranks_per_node).at(0);
    EXPECT_NE(note.find(std::string("fix: ") + shape.named), std::string::npos) << shape.named << "\n" << note;
    small.tp = Named(note, "tensor_parallel.tp_size", small.tp);
    small.pp = Named(note, "pipeline_parallel.pp_size", small.pp);
    small.micro = Named(note, "train_micro_batch_size_per_gpu", small.micro);
    small.micro_batches = Named(note, "gradient_accumulation_steps", small.micro_batches);
    small.virtual_stages = Named(note, "trireme.pipeline.virtual_stages", small.virtual_stages);
    EXPECT_EQ(0, shape.ranks_per_node % small.tp) << note;
    EXPECT_EQ(plan.batch.train_batch_size, testing::PlanOf(small).batch.train_batch_size) << note;
  }
  testing::SmallPlan none;  // one layer, one sequence: nothing goes round
  none.layers = 1;
  none.heads = 8;
  none.hidden = 32;
  none.vocab = 64;
  none.ranks = none.tp = 8;
  const std::string note = LayoutNotes(testing::PlanOf(none), 2).at(0);
  EXPECT_NE(note.find("groups of 2 with 4 times the replicas send"), std::string::npos) << note;
  EXPECT_NE(note.find("fix: set tensor_parallel.tp_size to 2, with a batch that 4 replicas divide"), std::string::npos);
}

}  // namespace
}  // namespace trireme
