// What is chosen within a layout: it fits, and one unit less would not.
#include "engine/advise/fill.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

using testing::ConfigOf;
using testing::ModelOf;
using testing::SmallPlan;

Job JobOf(const SmallPlan& small) {
  Job job{ConfigOf(small), ModelOf(small), {}};
  job.inputs.world_size = small.ranks;
  job.inputs.sequence_length = small.sequence;
  return job;
}

SmallPlan Activations() {
  return {.layers = 8,
          .hidden = 32,
          .positions = 64,
          .sequence = 64,
          .micro = 4,
          .micro_batches = 4,
          .ranks = 2,
          .bf16 = true};
}

int64_t BytesWith(const Job& job, Config config, const std::vector<RecomputeRun>& runs) {
  config.recompute = {};
  config.recompute.runs = runs;
  return PlanOf(job, config)->memory.total();
}

std::vector<Recompute> PoliciesOf(const Plan& plan) {
  std::vector<Recompute> policies;
  for (int unit = 1; unit < plan.head(); ++unit) policies.push_back(plan.units[static_cast<size_t>(unit)].recompute);
  return policies;
}

// Every unit that is made again, made again a little less: none fits.
void ExpectNoUnitToSpare(const Job& job, const Filled& filled, int64_t limit) {
  const std::vector<Recompute> policies = PoliciesOf(filled.plan);
  Config config = filled.config;
  config.zero_optimization.stage3_prefetch_bucket_size = 0;  // what gathering ahead takes could be had back
  for (size_t layer = 0; layer < policies.size(); ++layer) {
    if (policies[layer] == Recompute::kNone) continue;
    // One unit less of a kind on its rank is the last of that kind there: what others keep is as large.
    const int rank = filled.plan.PpRankOf(static_cast<int>(layer) + 1);
    bool last = true;
    for (size_t later = layer + 1; later < policies.size(); ++later) {
      last = last && !(policies[later] == policies[layer] && filled.plan.PpRankOf(static_cast<int>(later) + 1) == rank);
    }
    if (!last) continue;
    std::vector<RecomputeRun> runs;
    for (size_t i = 0; i < policies.size(); ++i) {
      const Recompute less = policies[i] == Recompute::kFull ? Recompute::kCheap : Recompute::kNone;
      runs.push_back({i == layer ? less : policies[i], 1});
    }
    EXPECT_GT(BytesWith(job, config, runs), limit) << "layer " << layer;
  }
}

struct Case {
  const char* name;
  SmallPlan small;
};

class FillOf : public ::testing::TestWithParam<Case> {};

TEST_P(FillOf, FitsAndHasNoUnitToSpareAtAnyLimit) {
  const Job job = JobOf(GetParam().small);
  const int64_t most = BytesWith(job, job.config, {{Recompute::kNone, 0}}),
                least = BytesWith(job, job.config, {{Recompute::kFull, 0}});
  ASSERT_LT(least, most);
  bool all_kinds[3] = {};
  for (int part = 0; part <= 12; ++part) {
    const int64_t limit = least + (most - least) * part / 12;
    SCOPED_TRACE(limit);
    const Filled filled = *Fill(job, job.config, {.limit_bytes = limit});
    ASSERT_TRUE(filled.fits);
    EXPECT_LE(filled.plan.memory.total(), limit);
    EXPECT_EQ(filled.plan.memory.total(), PlanOf(job, filled.config)->memory.total());
    ExpectNoUnitToSpare(job, filled, limit);
    for (const Recompute policy : PoliciesOf(filled.plan)) all_kinds[static_cast<size_t>(policy)] = true;
  }
  EXPECT_TRUE(all_kinds[0] && all_kinds[1] && all_kinds[2]);
}

INSTANTIATE_TEST_SUITE_P(Layouts, FillOf,
                         ::testing::Values(Case{"zero1", Activations()},
                                           Case{"zero3",
                                                [] {
                                                  SmallPlan p = Activations();
                                                  p.zero_stage = 3;
                                                  return p;
                                                }()},
                                           Case{"pipeline",
                                                [] {
                                                  SmallPlan p = Activations();
                                                  p.zero_stage = 1, p.ranks = p.pp = 2;
                                                  return p;
                                                }()},
                                           Case{"virtual",
                                                [] {
                                                  SmallPlan p = Activations();
                                                  p.zero_stage = 1, p.ranks = p.pp = p.virtual_stages = 2;
                                                  return p;
                                                }()},
                                           Case{"tensor",
                                                [] {
                                                  SmallPlan p = Activations();
                                                  p.ranks = 4, p.tp = 2, p.sequence_parallel = true;
                                                  return p;
                                                }()}),
                         [](const auto& of) { return of.param.name; });

TEST(Fill, WhatFitsIsLeftAlone) {
  SmallPlan small = Activations();
  small.zero_stage = 1;
  small.offload_optimizer = 1;
  const Job job = JobOf(small);
  const Filled filled = *Fill(job, job.config, {.limit_bytes = int64_t{1} << 40});
  EXPECT_TRUE(filled.fits);
  EXPECT_EQ((std::vector<RecomputeRun>{{Recompute::kNone, 0}}), filled.config.recompute.runs);
  EXPECT_EQ(OffloadDevice::kNone, filled.config.zero_optimization.offload_optimizer.device);
}

TEST(Fill, OffloadsAsFewUnitsAsItTakesWhereRecomputationIsNotEnough) {
  SmallPlan small = Activations();
  small.zero_stage = 3;
  Job job = JobOf(small);
  job.config.zero_optimization.stage3_prefetch_bucket_size = 0;
  const int64_t made_again = BytesWith(job, job.config, {{Recompute::kFull, 0}});
  Config offloaded = job.config;
  offloaded.zero_optimization.offload_optimizer.device = OffloadDevice::kCpu;
  offloaded.zero_optimization.offload_optimizer.ratio = 1;
  const int64_t least = BytesWith(job, offloaded, {{Recompute::kFull, 0}});
  for (const int part : {0, 1, 2, 3, 4, 5}) {
    const int64_t limit = least + (made_again - 1 - least) * part / 5;
    const Filled filled = *Fill(job, job.config, {.limit_bytes = limit});
    ASSERT_TRUE(filled.fits);
    EXPECT_LE(filled.plan.memory.total(), limit);
    const int units = static_cast<int>(std::ranges::count_if(filled.plan.units, &UnitLayout::optimizer_on_host));
    ASSERT_GE(units, 1);
    Config fewer = filled.config;
    fewer.zero_optimization.stage3_prefetch_bucket_size = 0;
    fewer.zero_optimization.offload_optimizer.ratio = RatioOfUnits(filled.plan, units - 1);
    if (units == 1) fewer.zero_optimization.offload_optimizer.device = OffloadDevice::kNone;
    EXPECT_GT(BytesWith(job, fewer, {{Recompute::kFull, 0}}), limit) << units;
    if (part == 0) {
      EXPECT_EQ(filled.plan.num_units(), units);
    }
    if (part == 5) {
      EXPECT_EQ(1, units);
    }
  }
  EXPECT_FALSE(Fill(job, job.config, {.limit_bytes = least - 1})->fits);
  EXPECT_FALSE(Fill(job, job.config, {.limit_bytes = least, .may_offload = false})->fits);
  EXPECT_FALSE(Fill(job, job.config, {.limit_bytes = least, .host_limit_bytes = 1})->fits);
}

TEST(Fill, BelowStage3AllOrNothingIsOffloadedAndLambsStatesNever) {
  SmallPlan small = Activations();
  small.zero_stage = 1;
  Job job = JobOf(small);
  const int64_t limit = BytesWith(job, job.config, {{Recompute::kFull, 0}}) - 1;
  const Filled filled = *Fill(job, job.config, {.limit_bytes = limit});
  ASSERT_TRUE(filled.fits);
  EXPECT_EQ(1, filled.config.zero_optimization.offload_optimizer.ratio);
  EXPECT_TRUE(std::ranges::all_of(filled.plan.units, &UnitLayout::optimizer_on_host));
  EXPECT_NE(Recompute::kFull, filled.plan.units[8].recompute) << "what offloading left free keeps activations";
  job.config.optimizer.type = OptimizerType::kLamb;
  EXPECT_FALSE(Fill(job, job.config, {.limit_bytes = limit})->fits);
}

TEST(Fill, RatiosNameUnits) {
  SmallPlan small = Activations();
  small.zero_stage = 3;
  const Job job = JobOf(small);
  const Plan plan = *PlanShapeOf(job, job.config);
  for (int units = 1; units <= plan.num_units(); ++units) {
    Config config = job.config;
    config.zero_optimization.offload_optimizer.device = OffloadDevice::kCpu;
    config.zero_optimization.offload_optimizer.ratio = RatioOfUnits(plan, units);
    EXPECT_EQ(units, std::ranges::count_if(PlanShapeOf(job, config)->units, &UnitLayout::optimizer_on_host));
  }
}

// Units small enough to be gathered two at a time: before anything is made again they are gathered one by one.
TEST(Fill, GathersLessFarAheadFirst) {
  SmallPlan small{.layers = 24, .hidden = 32, .ranks = 2, .zero_stage = 3, .bf16 = true};
  const Job job = JobOf(small);
  const Plan deep = *PlanOf(job, job.config);
  ASSERT_LT(deep.buckets.size(), deep.units.size() - 1);
  Config config = job.config;
  config.zero_optimization.stage3_prefetch_bucket_size = 0;
  const int64_t limit = deep.memory.total() - 1;
  ASSERT_LE(PlanOf(job, config)->memory.total(), limit);
  const Filled filled = *Fill(job, job.config, {.limit_bytes = limit});
  EXPECT_TRUE(filled.fits);
  EXPECT_EQ("nothing", DescribeRecompute(filled.plan));
  EXPECT_LT(filled.config.zero_optimization.stage3_prefetch_bucket_size, 1'000'000);
  EXPECT_EQ(deep.buckets, Fill(job, config, {.limit_bytes = limit + 1})->plan.buckets) << "and as far as there is room";
}

TEST(Fill, ALayoutThatCannotBeSaysWhy) {
  SmallPlan small = Activations();
  small.pp = small.ranks = 16;
  const Job job = JobOf(small);
  std::string why;
  EXPECT_FALSE(Fill(job, job.config, {.limit_bytes = 1}, &why));
  EXPECT_NE("", why);
}

TEST(Fill, TheLimitIsWhereAPlanIsNoLongerTight) {
  EXPECT_EQ(static_cast<int64_t>(0.95 * 80e9), MemoryLimit(80e9, MemoryScope::kGpu));
  EXPECT_EQ(static_cast<int64_t>(0.95 * 79e9), MemoryLimit(80e9, MemoryScope::kProcess));
  EXPECT_EQ(0, MemoryLimit(0, MemoryScope::kProcess));
}

// What a verdict counts beside the program's own, a filled layout leaves room for.
TEST(Fill, LeavesRoomForContextAndCommunicators) {
  const Job job = JobOf({.layers = 4, .micro_batches = 2, .ranks = 2, .zero_stage = 1});
  FillOptions options{.scope = MemoryScope::kGpu};
  const Plan plan = *PlanOf(job, job.config);
  EXPECT_EQ(plan.memory.total() + plan.memory.saving + kContextBytes + kCommunicatorBytes, options.Needs(plan));
  options.limit_bytes = options.Needs(plan) - 1;
  const std::optional<Filled> filled = Fill(job, job.config, options);
  ASSERT_TRUE(filled && filled->fits);
  EXPECT_LE(filled->plan.memory.total() + kContextBytes + kCommunicatorBytes, options.limit_bytes);
  EXPECT_NE("nothing", DescribeRecompute(filled->plan));
}

}  // namespace
}  // namespace trireme
