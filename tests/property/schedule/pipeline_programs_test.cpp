// Programs of pipelines: sound for every plan, each unit at work as often as there are micro-batches, activations
// bounded, and an objection to every damaged transfer.
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

TEST(PipelinePrograms, AreSound) {
  const unsigned seed = testing::Seed();
  SCOPED_TRACE(fmt::format("TRIREME_TEST_SEED={}", seed));
  RandomPlans plans(seed);
  for (int draw = 0; draw < kDraws; ++draw) {
    const SmallPlan small = plans.NextPipeline();
    SCOPED_TRACE(testing::Describe(small));
    const Plan plan = PlanOf(small);
    const int max_unjoined_frees = static_cast<int>(plans.Draw(0, 3));
    const std::vector<CompiledProgram> train = CompileAll(plan, ProgramKind::kTrain, max_unjoined_frees);
    const std::vector<CompiledProgram> eval = CompileAll(plan, ProgramKind::kEval, max_unjoined_frees);
    for (const std::vector<CompiledProgram>* ranks : {&train, &eval}) {
      const VerifyReport report = Verify(plan, *ranks);
      ASSERT_TRUE(report.ok()) << report.problems[0];
    }
    for (size_t rank = 0; rank < train.size(); ++rank) {
      const VerifyReport mixed =
          VerifySequence(plan, {&train[rank], &eval[rank], &eval[rank], &train[rank], &train[rank]});
      ASSERT_TRUE(mixed.ok()) << mixed.problems[0];
    }
  }
}

// Over the ranks of one pipeline.
TEST(PipelinePrograms, EachUnitWorksOnEachMicroBatchOnce) {
  const unsigned seed = testing::Seed();
  SCOPED_TRACE(fmt::format("TRIREME_TEST_SEED={}", seed));
  RandomPlans plans(seed);
  for (int draw = 0; draw < kDraws; ++draw) {
    const SmallPlan small = plans.NextPipeline();
    SCOPED_TRACE(testing::Describe(small));
    const Plan plan = PlanOf(small);
    std::map<std::pair<Op, int>, int64_t> count;
    int64_t transfers = 0;
    for (int pp_rank = 0; pp_rank < plan.topology.pp_size; ++pp_rank) {
      const int rank = plan.topology.RankOf({pp_rank, 0, 0});
      for (const Instruction& i : MakeProgram(plan, ProgramKind::kTrain, rank).instructions) {
        if (i.op == Op::kSend || i.op == Op::kRecv) ++transfers;
        for (int unit = i.units.first; unit <= i.units.last; ++unit) ++count[{i.op, unit}];
      }
    }
    const int64_t m = small.micro_batches;
    const bool split = small.schedule == PipelineSchedule::kZeroBubble;
    EXPECT_EQ(transfers, 4 * m * (plan.num_stages() - 1));
    for (int unit = 0; unit < plan.num_units(); ++unit) {
      const bool embedding = unit == 0, head = unit == plan.head(), block = !embedding && !head;
      const int64_t copies = embedding && plan.tied_across_stages() ? 2 : 1;
      EXPECT_EQ((count[{Op::kForward, unit}]), m);
      EXPECT_EQ((count[{Op::kBackward, unit}]), embedding || (block && !split) ? m : 0);
      EXPECT_EQ((count[{Op::kBackwardInput, unit}]), block && split ? m : 0);
      EXPECT_EQ((count[{Op::kBackwardWeight, unit}]), block && split ? m : 0);
      EXPECT_EQ((count[{Op::kRecompute, unit}]),
                plan.units[static_cast<size_t>(unit)].recompute == Recompute::kFull ? m : 0);
      EXPECT_EQ((count[{Op::kUpdate, unit}]), copies);
      EXPECT_EQ((count[{Op::kTieReduce, unit}]), copies == 2 ? 2 : 0);
      EXPECT_EQ((count[{Op::kReduce, unit}]),
                plan.topology.dp_size == 1 ? 0 : copies * (plan.effective_zero_stage >= 2 ? m : 1));
    }
  }
}

// 1F1B, interleaved and zero-bubble hold what their warm-up holds, however many micro-batches follow.
TEST(PipelinePrograms, ActivationsDoNotGrowWithMicroBatches) {
  for (const int64_t virtual_stages : {1, 2}) {
    for (const PipelineSchedule schedule : {PipelineSchedule::kOneForwardOneBackward, PipelineSchedule::kZeroBubble}) {
      if (virtual_stages > 1 && schedule == PipelineSchedule::kZeroBubble) continue;
      SmallPlan small;
      small.layers = 6;
      small.ranks = small.pp = 4;
      small.schedule = schedule;
      small.virtual_stages = virtual_stages;
      const auto arena = [&](int64_t micro_batches, int rank) {
        small.micro_batches = micro_batches;
        const Plan plan = PlanOf(small);
        return Compile(MakeProgram(plan, ProgramKind::kTrain, rank), OptionsOf(plan)).arena_bytes;
      };
      for (int rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(arena(16, rank), arena(64, rank)) << Name(schedule) << " " << virtual_stages << " rank " << rank;
      }
      small.schedule = PipelineSchedule::kGPipe;
      if (virtual_stages > 1) continue;
      EXPECT_GT(arena(64, 0), 2 * arena(16, 0));
    }
  }
}

class Damage : public ::testing::Test {
 protected:
  template <typename Mutate>
  void ForEachTransfer(Mutate mutate) {
    const unsigned seed = testing::Seed();
    SCOPED_TRACE(fmt::format("TRIREME_TEST_SEED={}", seed));
    RandomPlans plans(seed);
    for (int draw = 0; draw < 20; ++draw) {
      SmallPlan small = plans.NextPipeline();
      small.layers = 3;
      small.pp = small.ranks = 3;
      small.tp = 1;
      small.activations = {};
      small.virtual_stages = 1;
      small.micro_batches = plans.Draw(1, 4);
      SCOPED_TRACE(testing::Describe(small));
      const Plan plan = PlanOf(small);
      const std::vector<CompiledProgram> ranks = CompileAll(plan, ProgramKind::kTrain);
      ASSERT_TRUE(Verify(plan, ranks).ok());
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        for (size_t i = 0; i < ranks[rank].instructions.size(); ++i) {
          if (ranks[rank].instructions[i].instruction.lane != Lane::kPp) continue;
          std::vector<CompiledProgram> damaged = ranks;
          mutate(damaged[rank].instructions[i].instruction);
          EXPECT_FALSE(Verify(plan, damaged).ok()) << "rank " << rank << " #" << i;
        }
      }
    }
  }
};

TEST_F(Damage, ATransferGoesToTheWrongRank) {
  ForEachTransfer([](Instruction& transfer) { transfer.peer = (transfer.peer + 1) % 3; });
}

TEST_F(Damage, ATransferIsOfAnotherMicroBatch) {
  ForEachTransfer([](Instruction& transfer) { ++transfer.micro_batch; });
}

TEST_F(Damage, BothSidesSend) {
  ForEachTransfer([](Instruction& transfer) { transfer.op = transfer.op == Op::kSend ? Op::kRecv : Op::kSend; });
}

}  // namespace
}  // namespace trireme
