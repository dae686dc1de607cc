// Which layers are recomputed together, by the config and by the stages.
#include <gtest/gtest.h>

#include <vector>

#include "engine/base/error.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

using testing::PlanOf;
using testing::SmallPlan;

SmallPlan Layers(int64_t layers, const RecomputeConfig& activations) {
  SmallPlan small;
  small.layers = layers;
  small.activations = activations;
  return small;
}

std::vector<UnitRange> SegmentsOf(const Plan& plan) {
  std::vector<UnitRange> segments;
  for (const UnitLayout& unit : plan.units) {
    if (unit.recompute == Recompute::kFull && (segments.empty() || segments.back() != unit.segment)) {
      segments.push_back(unit.segment);
    }
  }
  return segments;
}

using Segments = std::vector<UnitRange>;

TEST(RecomputePlan, SegmentsFollowThePolicyAndTheStages) {
  RecomputeConfig full{.runs = {{Recompute::kFull, 0}}, .layers_per_checkpoint = 2};
  EXPECT_EQ(SegmentsOf(PlanOf(Layers(5, full))), (Segments{{1, 2}, {3, 4}, {5, 5}}));
  full.layers_per_checkpoint = 0;
  full.number_checkpoints = 2;
  EXPECT_EQ(SegmentsOf(PlanOf(Layers(5, full))), (Segments{{1, 3}, {4, 5}}));
  full.number_checkpoints = 0;
  EXPECT_EQ(SegmentsOf(PlanOf(Layers(2, full))), (Segments{{1, 1}, {2, 2}}));
  full.runs = {{Recompute::kFull, 3}, {Recompute::kCheap, 1}, {Recompute::kFull, 0}};
  full.layers_per_checkpoint = 4;
  EXPECT_EQ(SegmentsOf(PlanOf(Layers(6, full))), (Segments{{1, 3}, {5, 6}}));

  SmallPlan pipeline = Layers(5, {.runs = {{Recompute::kFull, 0}}, .layers_per_checkpoint = 2});
  pipeline.pp = 2;
  pipeline.micro_batches = 2;
  const Plan cut = PlanOf(pipeline);
  for (const UnitLayout& unit : cut.units) {
    if (unit.recompute == Recompute::kFull) {
      EXPECT_EQ(cut.StageOf(unit.segment.first), cut.StageOf(unit.segment.last));
    }
  }
  pipeline.activations = {.runs = {{Recompute::kFull, 1}}, .of_each_stage = true};
  const Plan first = PlanOf(pipeline);
  EXPECT_EQ(SegmentsOf(first), (Segments{{1, 1}, {first.stages[1].first, first.stages[1].first}}));
}

TEST(RecomputePlan, BucketsOfStage3BeginWithSegments) {
  SmallPlan small = Layers(6, {.runs = {{Recompute::kFull, 0}}, .layers_per_checkpoint = 2});
  small.zero_stage = 3;
  for (const int64_t elements : {1, 2000, 500'000'000}) {
    small.bucket_elements = elements;
    const Plan plan = PlanOf(small);
    for (const UnitRange& bucket : plan.buckets) {
      for (int unit = bucket.first + 1; unit <= bucket.last; ++unit) {
        EXPECT_TRUE(unit % 2 == 0 || unit > 6) << "segment " << unit << " begins within a bucket";
      }
    }
  }
}

TEST(RecomputePlan, CheapIsWhatNeedsNoProduct) {
  const Plan plan = PlanOf(Layers(1, {.runs = {{Recompute::kCheap, 0}}}));
  std::vector<std::string> remade, deferred;
  for (const SavedSpec& saved : plan.units[1].spec.saved) {
    if (saved.place == SavedSpec::Place::kRemade) remade.push_back(saved.name + " from " + saved.remade_from);
  }
  EXPECT_EQ(remade, (std::vector<std::string>{"norm_1.out from input", "norm_2.out from mid", "mlp.act from mlp.fc"}));
  for (const SavedSpec& saved : plan.units[1].spec.deferred) deferred.push_back(saved.name);
  EXPECT_EQ(deferred,
            (std::vector<std::string>{"mlp.dout", "mlp.dfc", "attn.dout", "attn.dqkv", "norm_1.out", "norm_2.out"}));
}

TEST(RecomputePlan, WhatCannotBe) {
  const auto id_of = [](const SmallPlan& small, const std::vector<UnitSpec>& own) {
    PlanInputs inputs;
    inputs.world_size = small.ranks;
    inputs.sequence_length = small.sequence;
    inputs.own_units = own;
    try {
      MakePlan(testing::ConfigOf(small), testing::ModelOf(small), inputs);
    } catch (const Error& error) {
      return error.id();
    }
    return std::string();
  };
  EXPECT_EQ(id_of(Layers(2, {.runs = {{Recompute::kFull, 3}}}), {}), "PLN030");
  UnitSpec own;
  own.name = "blocks.0";
  own.layer = 0;
  own.autograd = true;
  EXPECT_EQ(id_of(Layers(2, {.runs = {{Recompute::kCheap, 0}}}), {own}), "PLN030");
  EXPECT_EQ(id_of(Layers(2, {.runs = {{Recompute::kFull, 1}, {Recompute::kCheap, 0}}}), {own}), "");
}

}  // namespace
}  // namespace trireme
