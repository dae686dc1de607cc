// Every program that a plan can lead to is sound, owns everything once, and keeps its arena bounded.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "engine/schedule/verify.h"
#include "tests/property/schedule/random_plan.h"

namespace trireme {
namespace {

using testing::CompileAll;
using testing::PlanOf;
using testing::RandomPlans;
using testing::SmallPlan;

constexpr int kDraws = 300;

TEST(Programs, AreSound) {
  const unsigned seed = testing::Seed();
  SCOPED_TRACE(fmt::format("TRIREME_TEST_SEED={}", seed));
  RandomPlans plans(seed);
  for (int draw = 0; draw < kDraws; ++draw) {
    const SmallPlan small = plans.Next();
    const Plan plan = PlanOf(small);
    const int max_unjoined_frees = static_cast<int>(plans.Draw(0, 3));
    const std::vector<CompiledProgram> train = CompileAll(plan, ProgramKind::kTrain, max_unjoined_frees);
    const std::vector<CompiledProgram> eval = CompileAll(plan, ProgramKind::kEval, max_unjoined_frees);
    for (const std::vector<CompiledProgram>* ranks : {&train, &eval}) {
      const VerifyReport report = Verify(plan, *ranks);
      ASSERT_TRUE(report.ok()) << report.problems[0] << "\n"
                               << testing::Describe(small) << " unjoined " << max_unjoined_frees;
    }
    const VerifyReport mixed =
        VerifySequence(plan, {&train[0], &eval[0], &eval[0], &train[0], &train[0], &eval[0], &train[0]});
    ASSERT_TRUE(mixed.ok()) << mixed.problems[0] << "\n" << testing::Describe(small);
  }
}

TEST(Programs, ShardsAndBucketsCoverEachElementOnce) {
  const unsigned seed = testing::Seed();
  SCOPED_TRACE(fmt::format("TRIREME_TEST_SEED={}", seed));
  RandomPlans plans(seed);
  for (int draw = 0; draw < kDraws; ++draw) {
    const SmallPlan small = plans.Next();
    const Plan plan = PlanOf(small);
    SCOPED_TRACE(testing::Describe(small));
    int next_unit = 0;
    for (const UnitRange& bucket : plan.buckets) {
      EXPECT_EQ(bucket.first, next_unit);
      EXPECT_GE(bucket.last, bucket.first);
      next_unit = bucket.last + 1;
    }
    EXPECT_EQ(next_unit, plan.num_units());
    int64_t parameters = 0;
    for (const UnitLayout& unit : plan.units) {
      int64_t end = 0;
      for (const Segment& segment : unit.segments) {
        EXPECT_GE(segment.begin, end);
        EXPECT_LT(segment.begin - end, kSegmentAlignment);
        EXPECT_EQ(segment.begin % kSegmentAlignment, 0);
        EXPECT_EQ(segment.count, segment.parameter.HeldElements());
        end = segment.begin + segment.count;
        int64_t logical = 1;
        for (const int64_t size : segment.parameter.shape) logical *= size;
        parameters += logical;
      }
      EXPECT_EQ(end, unit.elements);
      int64_t covered = 0;
      for (int rank = 0; rank < plan.topology.dp_size; ++rank) {
        EXPECT_EQ(unit.Shard(rank).begin, covered);
        covered = unit.Shard(rank).end;
      }
      EXPECT_EQ(covered, unit.padded_elements);
      EXPECT_GE(unit.padded_elements, unit.elements);
      EXPECT_LT(unit.padded_elements - unit.elements, plan.topology.dp_size * kShardAlignment);
    }
    EXPECT_EQ(parameters, plan.num_parameters);
  }
}

// Each parameter's gradient is reduced and updated exactly once a step (once a micro-batch at ZeRO 2 and 3).
TEST(Programs, EachUnitIsReducedUpdatedAndGatheredAsOften) {
  const unsigned seed = testing::Seed();
  SCOPED_TRACE(fmt::format("TRIREME_TEST_SEED={}", seed));
  RandomPlans plans(seed);
  for (int draw = 0; draw < kDraws; ++draw) {
    const SmallPlan small = plans.Next();
    const Plan plan = PlanOf(small);
    SCOPED_TRACE(testing::Describe(small));
    std::map<std::pair<Op, int>, int64_t> count;
    for (const Instruction& i : MakeProgram(plan, ProgramKind::kTrain, 0).instructions) {
      for (int unit = i.units.first; unit <= i.units.last; ++unit) ++count[{i.op, unit}];
    }
    const int64_t m = small.micro_batches;
    const int stage = plan.effective_zero_stage;
    const bool one_bucket = plan.buckets.size() == 1;
    for (int unit = 0; unit < plan.num_units(); ++unit) {
      const bool embedding = unit == 0, head = unit + 1 == plan.num_units();
      EXPECT_EQ((count[{Op::kForward, unit}]), m);
      EXPECT_EQ((count[{Op::kBackward, unit}]), head ? 0 : m);
      EXPECT_EQ((count[{Op::kRecompute, unit}]),
                plan.units[static_cast<size_t>(unit)].recompute == Recompute::kFull ? m : 0);
      EXPECT_EQ((count[{Op::kUpdate, unit}]), 1);
      EXPECT_EQ((count[{Op::kReduce, unit}]), plan.topology.dp_size == 1 ? 0 : stage >= 2 ? m : 1);
      if (stage == 1 || stage == 2) {
        EXPECT_EQ((count[{Op::kGather, unit}]), 1);
      }
      const bool updated_on_host = plan.OptimizerOnHost(unit), moves = updated_on_host != plan.weights_on_host;
      int64_t up = updated_on_host && moves ? 1 : 0;
      if (stage == 3) {
        const bool kept = unit >= plan.buckets.back().first;
        const int64_t times = embedding ? (small.tied && !one_bucket ? 2 : 1) : kept ? 1 : 2;
        // Its segment ends in a later bucket.
        const UnitLayout& layout = plan.units[static_cast<size_t>(unit)];
        const auto own = std::ranges::find_if(plan.buckets, [&](const UnitRange& b) { return b.last >= unit; });
        const bool again = layout.recompute == Recompute::kFull && layout.segment.last > own->last;
        EXPECT_EQ((count[{Op::kGather, unit}]), plan.topology.dp_size > 1 ? (times + again) * m : 0) << "unit " << unit;
        if (plan.weights_on_host) up += (times + again) * m;
      }
      // Its output starts a recomputation.
      const int next = std::min(unit + 1, plan.head());
      const UnitLayout& after = plan.units[static_cast<size_t>(next)];
      const bool kept = after.recompute == Recompute::kFull && after.segment.first == next && next > unit;
      const int64_t kept_on_host = plan.boundaries_on_host && kept ? m : 0;
      EXPECT_EQ((count[{Op::kCopyUp, unit}]), up + kept_on_host) << "unit " << unit;
      EXPECT_EQ((count[{Op::kCopyDown, unit}]),
                (updated_on_host || moves ? 1 : 0) + (unit == 0 ? 1 : 0) + kept_on_host)
          << "unit " << unit;  // the copy of StepState names unit 0
    }
  }
}

// Accumulation keeps the arena of three micro-batches, whatever their number: `plan` compiles three.
TEST(Programs, ArenaRepeatsFromTheThirdMicroBatchOn) {
  const unsigned seed = testing::Seed();
  SCOPED_TRACE(fmt::format("TRIREME_TEST_SEED={}", seed));
  RandomPlans plans(seed);
  for (int draw = 0; draw < kDraws; ++draw) {
    SmallPlan small = plans.Next();
    small.micro_batches = kFoldedMicroBatches;
    Plan three = PlanOf(small);
    const CompiledProgram folded = Compile(MakeProgram(three, ProgramKind::kTrain, 0), OptionsOf(three));
    small.micro_batches = plans.Draw(4, 12);
    Plan many = PlanOf(small);
    const CompiledProgram whole = Compile(MakeProgram(many, ProgramKind::kTrain, 0), OptionsOf(many));
    EXPECT_EQ(whole.arena_bytes, folded.arena_bytes) << testing::Describe(small);
    EXPECT_EQ(whole.host_arena_bytes, folded.host_arena_bytes) << testing::Describe(small);
    EXPECT_EQ(whole.peak_pool_bytes, folded.peak_pool_bytes) << testing::Describe(small);
    Plan counted = many;
    AccountMemory(many);
    AccountMemory(counted, std::vector{whole});
    EXPECT_EQ(many.traffic.gather, counted.traffic.gather) << testing::Describe(small);
    EXPECT_EQ(many.traffic.reduce, counted.traffic.reduce) << testing::Describe(small);
    EXPECT_EQ(many.memory.total(), counted.memory.total()) << testing::Describe(small);
    EXPECT_EQ(many.memory.host.total(), counted.memory.host.total()) << testing::Describe(small);
    EXPECT_EQ(many.traffic.down, counted.traffic.down) << testing::Describe(small);
    EXPECT_EQ(many.traffic.up, counted.traffic.up) << testing::Describe(small);
  }
}

}  // namespace
}  // namespace trireme
