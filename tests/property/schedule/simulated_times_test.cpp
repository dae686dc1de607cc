// Times of compiled Programs over a whole pipeline: instructions as they wait for each other on their lanes, sends that
// wait for their receives. The bubbles are those of the published formulas.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "engine/schedule/simulate.h"
#include "tests/property/schedule/random_plan.h"

namespace trireme {
namespace {

using testing::CompileAll;
using testing::PlanOf;
using testing::SmallPlan;

struct Costs {
  double forward = 1, input = 1, weight = 1;  // of one block; all else takes no time
};

double CostOf(const Plan& plan, const Instruction& instruction, const Costs& costs) {
  if (plan.units[static_cast<size_t>(instruction.units.first)].spec.kind != UnitKind::kBlock) return 0;
  switch (instruction.op) {
    case Op::kForward:
    case Op::kRecompute:
      return costs.forward;
    case Op::kBackward:
      return costs.input + costs.weight;
    case Op::kBackwardInput:
      return costs.input;
    case Op::kBackwardWeight:
      return costs.weight;
    default:
      return 0;
  }
}

Simulated Clocked(const Plan& plan, const std::vector<CompiledProgram>& programs, const Costs& costs, int steps = 1) {
  SimulationCosts times;
  times.cost = [&](int, const CompiledInstruction& compiled) {
    return InstructionCost{CostOf(plan, compiled.instruction, costs), 0};
  };
  return Simulate(plan, programs, times, steps);
}

// `blocks` equal blocks a stage.
double BubbleOfProgram(PipelineSchedule schedule, int pp, int virtual_stages, int micro_batches, int blocks = 1,
                       const Costs& costs = {}) {
  SmallPlan small;
  small.ranks = small.pp = pp;
  small.schedule = schedule;
  small.virtual_stages = virtual_stages;
  small.micro_batches = micro_batches;
  small.layers = pp * virtual_stages * blocks;
  small.partition = "layers:";
  for (int stage = 0; stage < pp * virtual_stages; ++stage) {
    small.partition += fmt::format("{}{}", stage == 0 ? "" : ",", stage * blocks);
  }
  const Plan plan = PlanOf(small);
  const Simulated run = Clocked(plan, CompileAll(plan, ProgramKind::kTrain), costs);
  EXPECT_TRUE(run.finished);
  return run.bubble;
}

constexpr PipelineSchedule kGPipe = PipelineSchedule::kGPipe, k1F1B = PipelineSchedule::kOneForwardOneBackward,
                           kZeroBubble = PipelineSchedule::kZeroBubble;

TEST(SimulatedPrograms, BubblesAreTheFormulas) {
  for (const int p : {1, 2, 3, 4, 7}) {
    for (const int m : {p, 2 * p, 5 * p, 5 * p + 3}) {
      const double want = static_cast<double>(p - 1) / (m + p - 1);
      for (const int blocks : {1, 2}) {
        EXPECT_NEAR(want, BubbleOfProgram(k1F1B, p, 1, m, blocks), 1e-12) << p << " " << m << " " << blocks;
        EXPECT_NEAR(want, BubbleOfProgram(kGPipe, p, 1, m, blocks), 1e-12) << p << " " << m << " " << blocks;
      }
    }
  }
}

TEST(SimulatedPrograms, InterleavedBubblesAreTheFormula) {
  for (const int p : {2, 3, 4}) {
    for (const int v : {2, 3}) {
      for (const int m : {p, 2 * p, 5 * p}) {
        EXPECT_NEAR(static_cast<double>(p - 1) / (v * m + p - 1), BubbleOfProgram(k1F1B, p, v, m), 1e-12)
            << p << " " << v << " " << m;
      }
    }
  }
}

TEST(SimulatedPrograms, ZeroBubbleHasLessThanHalfOfIt) {
  for (const int blocks : {1, 2}) {
    const double one_f_one_b = BubbleOfProgram(k1F1B, 4, 1, 8, blocks);
    EXPECT_NEAR(3.0 / 11, one_f_one_b, 1e-12);
    EXPECT_LT(BubbleOfProgram(kZeroBubble, 4, 1, 8, blocks), 0.5 * one_f_one_b);
  }
}

// Whatever the times of the passes are, 1F1B is no slower than GPipe. Zero-bubble beats 1F1B at equal times; transfers
// that are posted together make it lose where an input gradient takes longer than a weight gradient.
TEST(SimulatedPrograms, OrderOfTheSchedules) {
  for (const Costs& costs : {Costs{1, 1, 1}, Costs{1, 1.5, 0.5}, Costs{1, 0.8, 1.2}}) {
    for (const int p : {2, 3, 4}) {
      for (const int m : {p, 2 * p, 4 * p}) {
        const double one_f_one_b = BubbleOfProgram(k1F1B, p, 1, m, 1, costs);
        EXPECT_LE(one_f_one_b, BubbleOfProgram(kGPipe, p, 1, m, 1, costs) + 1e-12) << p << " " << m;
        if (costs.weight != costs.input) continue;
        EXPECT_LT(BubbleOfProgram(kZeroBubble, p, 1, m, 1, costs), one_f_one_b) << p << " " << m;
      }
    }
  }
}

// One pipeline: of the ranks that differ in their tp rank alone the first.
std::vector<CompiledProgram> OnePipeline(const Plan& plan) {
  std::vector<CompiledProgram> ranks;
  for (int pp = 0; pp < plan.topology.pp_size; ++pp) {
    ranks.push_back(Compile(MakeProgram(plan, ProgramKind::kTrain, plan.topology.RankOf({pp, 0, 0})), OptionsOf(plan)));
  }
  return ranks;
}

// Instructions of one lane run one after the other, and none starts before what it waits for has ended.
void CheckOrder(const CompiledProgram& program, const RankTimes& rank) {
  std::array<double, kNumLanes> free{};
  free.fill(-1e9);
  for (const CompiledInstruction& compiled : program.instructions) {
    const auto at = [&](int32_t id) { return rank.times[static_cast<size_t>(id)]; };
    const InstructionTime& time = at(compiled.instruction.id);
    double& lane = free[static_cast<size_t>(compiled.instruction.lane)];
    EXPECT_LE(compiled.instruction.lane == Lane::kPp ? time.start : lane, time.start + 1e-12);
    lane = time.end;
    EXPECT_LE(time.start, time.end);
    for (const int32_t wait : compiled.waits) EXPECT_LE(at(wait).end, time.start + 1e-12);
  }
}

// Random shapes: every instruction ends in its order, in the second step as in the first.
TEST(SimulatedPrograms, EndForRandomShapes) {
  const unsigned seed = testing::Seed();
  SCOPED_TRACE(fmt::format("TRIREME_TEST_SEED={}", seed));
  testing::RandomPlans plans(seed);
  for (int draw = 0; draw < 100; ++draw) {
    SmallPlan small = plans.NextPipeline();
    small.ranks = small.pp * small.tp;
    SCOPED_TRACE(testing::Describe(small));
    const Plan plan = PlanOf(small);
    const std::vector<CompiledProgram> programs = OnePipeline(plan);
    for (const int steps : {1, 2}) {
      const Simulated run = Clocked(plan, programs, {}, steps);
      EXPECT_TRUE(run.finished);
      EXPECT_GE(run.bubble, -1e-12);
      for (size_t rank = 0; rank < programs.size(); ++rank) CheckOrder(programs[rank], run.ranks[rank]);
    }
  }
}

}  // namespace
}  // namespace trireme
