// Cuts of a model into pipeline stages, against those of DeepSpeed's PipelineModule.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/base/error.h"
#include "engine/plan/parts.h"
#include "tests/support/error_id.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

using plan_parts::BalancedParts;
using plan_parts::UniformParts;
using testing::IdOf;
using testing::PlanOf;
using testing::SmallPlan;

std::vector<double> Times(int count, double weight) { return std::vector<double>(static_cast<size_t>(count), weight); }

std::vector<double> Join(std::vector<std::vector<double>> lists) {
  std::vector<double> all;
  for (const std::vector<double>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

TEST(Stages, BalancedPartsAreDeepSpeeds) {
  using Parts = std::vector<int>;
  EXPECT_EQ(Parts({0, 3, 6, 8}), BalancedParts(Times(10, 1), 4));
  EXPECT_EQ(Parts({0, 1, 5}), BalancedParts({5, 1, 1, 1, 1, 5}, 3));
  EXPECT_EQ(Parts({0, 1, 4, 7}), BalancedParts({10, 1, 1, 1, 1, 1, 1, 10}, 4));
  EXPECT_EQ(Parts({0, 5, 7}), BalancedParts({1, 2, 3, 4, 5, 6, 7, 8, 9}, 3));
  EXPECT_EQ(Parts({0, 2, 7, 12}), BalancedParts(Join({{50}, Times(12, 12), {0, 50}}), 4));
  EXPECT_EQ(Parts({0, 3, 5, 7}), BalancedParts(Join({{0}, Times(8, 1), {0}}), 4));
  EXPECT_EQ(Parts({0, 4, 6, 8}), BalancedParts(Join({{0, 0}, Times(8, 1), {0, 0}}), 4));
  EXPECT_EQ(Parts({0, 4}), BalancedParts({3, 1, 1, 1, 1, 1, 1, 3}, 2));
  EXPECT_EQ(Parts({0, 7, 14, 20}), UniformParts(26, 4));
}

SmallPlan Pipeline(int64_t pp, const std::string& partition) {
  SmallPlan small;
  small.layers = 6;
  small.ranks = small.pp = pp;
  small.partition = partition;
  return small;
}

std::vector<int> Firsts(const SmallPlan& small) {
  std::vector<int> firsts;
  for (const UnitRange& stage : PlanOf(small).stages) firsts.push_back(stage.first);
  return firsts;
}

TEST(Stages, MethodsOfTheConfig) {
  EXPECT_EQ(std::vector<int>({0, 4}), Firsts(Pipeline(2, "uniform")));
  EXPECT_EQ(std::vector<int>({0, 3}), Firsts(Pipeline(2, "layers:0,2")));
  EXPECT_EQ(std::vector<int>({0, 2, 6}), Firsts(Pipeline(3, "layers: 0, 1, 5")));
  EXPECT_EQ(std::vector<int>({0, 4}), Firsts(Pipeline(2, "type:BLOCK")));
  EXPECT_EQ(2U, Firsts(Pipeline(2, "time")).size());
  EXPECT_EQ(std::vector<int>({0, 1, 2, 3, 4, 5, 6, 7}), Firsts(Pipeline(8, "uniform")));
}

// As DeepSpeed's PipelineModule counts it; without it the head's stage would get more layers than it can hold.
TEST(Stages, ATiedWeightCountsWhereItIsReadToo) {
  SmallPlan small = Pipeline(2, "parameters");
  EXPECT_EQ(std::vector<int>({0, 4}), Firsts(small));
}

TEST(Stages, WhatEachRankHolds) {
  SmallPlan small = Pipeline(2, "uniform");
  small.virtual_stages = 2;
  small.micro_batches = 2;
  Plan plan = PlanOf(small);
  EXPECT_EQ(std::vector<int>({0, 1, 4, 5}), plan.UnitsOf(0));
  EXPECT_EQ(std::vector<int>({0, 2, 3, 6, 7}), plan.UnitsOf(1)) << "with the copy of the tied embedding";
  EXPECT_TRUE(plan.tied_across_stages());
  small.tied = false;
  plan = PlanOf(small);
  EXPECT_EQ(std::vector<int>({2, 3, 6, 7}), plan.UnitsOf(1));
  for (const UnitRange& bucket : plan.buckets) EXPECT_EQ(plan.StageOf(bucket.first), plan.StageOf(bucket.last));
}

TEST(Stages, WrongPipelinesAreRefused) {
  const auto id = [](SmallPlan small) { return IdOf([&] { PlanOf(small); }); };
  EXPECT_EQ("PLN024", id(Pipeline(9, "uniform")));
  EXPECT_EQ("PLN021", id(Pipeline(2, "profile")));
  EXPECT_EQ("PLN021", id(Pipeline(2, "type:(")));
  for (const char* list :
       {"layers:1,3", "layers:0,0", "layers:0,7", "layers:0,x", "layers:0", "layers:0,1,2", "layers:"}) {
    EXPECT_EQ("PLN022", id(Pipeline(2, list))) << list;
  }
  SmallPlan interleaved = Pipeline(2, "uniform");
  interleaved.virtual_stages = 2;
  interleaved.micro_batches = 3;
  EXPECT_EQ("PLN023", id(interleaved));
  interleaved.micro_batches = 4;
  interleaved.schedule = PipelineSchedule::kZeroBubble;
  EXPECT_EQ("PLN023", id(interleaved));
  SmallPlan alone = Pipeline(1, "uniform");
  alone.virtual_stages = 2;
  EXPECT_EQ("PLN023", id(alone));
  SmallPlan odd = Pipeline(2, "uniform");
  odd.ranks = 3;
  EXPECT_EQ("PLN002", id(odd));
}

TEST(Stages, LAY_03_EveryLayerIsInOneStage) {
  for (const auto& [layers, pp] : {std::pair(30, 4), std::pair(40, 16), std::pair(7, 3)}) {
    SmallPlan small = Pipeline(pp, "parameters");
    small.layers = layers;
    const Plan plan = PlanOf(small);
    int next = 0;
    for (const UnitRange& stage : plan.stages) {
      EXPECT_EQ(next, stage.first);
      EXPECT_LE(stage.first, stage.last);
      next = stage.last + 1;
    }
    EXPECT_EQ(plan.num_units(), next);
  }
}

TEST(Stages, LAY_05_UniformStagesDifferByOneAtMost) {
  SmallPlan small = Pipeline(8, "uniform");
  small.layers = 38;
  int least = 1000, most = 0;
  for (const UnitRange& stage : PlanOf(small).stages) {
    least = std::min(least, stage.last - stage.first + 1);
    most = std::max(most, stage.last - stage.first + 1);
  }
  EXPECT_LE(most - least, 1);
}

TEST(TensorParallel, LAY_01_AllSizesThatDoNotDivideAreListedWithTheLegalOnes) {
  SmallPlan small;
  small.layers = 1;
  small.heads = 52;
  small.hidden = 6656;
  small.ranks = 8;
  small.micro_batches = 1;
  Config config = testing::ConfigOf(small);
  config.batch = {1, 1, 1};
  config.tensor_parallel.tp_size = 8;
  ModelSpec model = testing::ModelOf(small);
  PadVocabulary(model, 8);
  PlanInputs inputs;
  inputs.world_size = 8;
  inputs.sequence_length = 8;
  try {
    MakePlan(config, model, inputs);
    ADD_FAILURE() << "52 heads over 8 ranks";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(std::string::npos, text.find("tp_size 8 does not divide 52 attention heads, 52 key-value heads")) << text;
    EXPECT_NE(std::string::npos, text.find("can be split by 1, 2, 4, 13, 26, 52")) << text;
  }
}

}  // namespace
}  // namespace trireme
