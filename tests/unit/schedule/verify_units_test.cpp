// Every unit once for each micro-batch and direction: each pass that is left out or doubled is told.
#include "engine/schedule/verify_units.h"

#include <gtest/gtest.h>

#include "engine/schedule/make_program.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

using testing::PlanOf;
using testing::SmallPlan;

std::vector<CompiledProgram> PipelineOf(const Plan& plan, ProgramKind kind) {
  std::vector<CompiledProgram> ranks;
  for (int pp = 0; pp < plan.topology.pp_size; ++pp) {
    const int rank = plan.topology.RankOf({pp, 0, 0});
    ranks.push_back(Compile(MakeProgram(plan, kind, rank), OptionsOf(plan)));
  }
  return ranks;
}

class UnitsOnce : public ::testing::TestWithParam<SmallPlan> {};

TEST_P(UnitsOnce, APassLeftOutOrDoubledIsTold) {
  const Plan plan = PlanOf(GetParam());
  EXPECT_TRUE(UnitsNotRunOnce(plan, ProgramKind::kEval, PipelineOf(plan, ProgramKind::kEval)).empty());
  const std::vector<CompiledProgram> sound = PipelineOf(plan, ProgramKind::kTrain);
  ASSERT_TRUE(UnitsNotRunOnce(plan, ProgramKind::kTrain, sound).empty());
  for (size_t rank = 0; rank < sound.size(); ++rank) {
    for (size_t i = 0; i < sound[rank].instructions.size(); ++i) {
      const Op op = sound[rank].instructions[i].instruction.op;
      const bool pass =
          op == Op::kForward || op == Op::kBackward || op == Op::kBackwardInput || op == Op::kBackwardWeight;
      std::vector<CompiledProgram> less = sound, more = sound;
      std::vector<CompiledInstruction>&left = less[rank].instructions, &doubled = more[rank].instructions;
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
      doubled.push_back(doubled[i]);
      EXPECT_NE(UnitsNotRunOnce(plan, ProgramKind::kTrain, less).empty(), pass) << "rank " << rank << " #" << i;
      EXPECT_NE(UnitsNotRunOnce(plan, ProgramKind::kTrain, more).empty(), pass) << "rank " << rank << " #" << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Schedules, UnitsOnce,
    ::testing::Values(SmallPlan{.ranks = 1}, SmallPlan{.micro_batches = 3, .zero_stage = 3},
                      SmallPlan{.layers = 4, .micro_batches = 3, .ranks = 4, .zero_stage = 1, .pp = 2},
                      SmallPlan{.layers = 6, .micro_batches = 4, .pp = 2, .virtual_stages = 2},
                      SmallPlan{.layers = 4, .micro_batches = 3, .recompute = Recompute::kFull, .pp = 2},
                      SmallPlan{.layers = 4, .micro_batches = 3, .pp = 2, .schedule = PipelineSchedule::kZeroBubble},
                      SmallPlan{.layers = 4, .micro_batches = 3, .pp = 2, .schedule = PipelineSchedule::kGPipe}));

}  // namespace
}  // namespace trireme
