// Times of compiled Programs over a whole pipeline: instructions as they wait for each other on their lanes, sends that
// wait for their receives. The bubbles are those of the published formulas.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

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

// Each rank's lanes are first in, first out; an instruction starts when those it waits for have ended. A post starts
// when its rank has come to it and ends when every partner has come to the matching one. Collectives of more ranks wait
// for nobody: they come after the last pass.
class Timeline {
 public:
  Timeline(const Plan& plan, const std::vector<CompiledProgram>& programs, const Costs& costs)
      : plan_(plan), costs_(costs) {
    for (const CompiledProgram& program : programs) {
      Rank& rank = ranks_.emplace_back();
      rank.ends.resize(program.instructions.size());
      for (const CompiledInstruction& compiled : program.instructions) {
        rank.lanes[static_cast<size_t>(compiled.instruction.lane)].push_back(&compiled);
      }
    }
    while (Advance()) {
    }
  }

  // Share of the ranks' time, from the start to the end of the last pass, in which they compute nothing.
  double Bubble() const {
    double busy = 0, end = 0;
    for (const Rank& rank : ranks_) {
      busy += rank.busy;
      end = std::max(end, rank.last_pass);
    }
    return 1 - busy / (end * static_cast<double>(ranks_.size()));
  }

  bool Finished() const {
    return std::ranges::all_of(ranks_, [](const Rank& rank) {
      return std::ranges::all_of(rank.ends, [](const auto& end) { return end.has_value(); });
    });
  }

 private:
  struct Rank {
    std::array<std::vector<const CompiledInstruction*>, kNumLanes> lanes;
    std::array<size_t, kNumLanes> next{};
    std::array<double, kNumLanes> free{};
    std::vector<std::optional<double>> ends;
    double busy = 0, last_pass = 0;
  };
  using TransferId = std::tuple<int, int, int, int, bool>;  // from, to, unit, micro-batch, gradient

  static TransferId IdOf(int rank, const Instruction& transfer) {
    const bool sends = transfer.op == Op::kSend;
    const std::vector<BufferKey>& keys = sends ? transfer.reads : transfer.writes;
    const bool gradient = keys.at(0).kind == BufferKind::kBoundaryGradient;
    return {sends ? rank : transfer.peer, sends ? transfer.peer : rank, transfer.units.first, transfer.micro_batch,
            gradient};
  }

  std::optional<double> StartOf(const Rank& rank, size_t lane, const CompiledInstruction& compiled) const {
    double start = rank.free[lane];
    for (const int32_t wait : compiled.waits) {
      const std::optional<double> end = rank.ends[static_cast<size_t>(wait)];
      if (!end) return std::nullopt;
      start = std::max(start, *end);
    }
    return start;
  }

  void End(Rank& rank, size_t lane, const CompiledInstruction& compiled, double time) {
    rank.ends[static_cast<size_t>(compiled.instruction.id)] = rank.free[lane] = time;
    ++rank.next[lane];
  }

  bool Advance() {
    bool any = false;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      for (size_t lane = 0; lane < kNumLanes; ++lane) {
        while (rank.next[lane] < rank.lanes[lane].size()) {
          const CompiledInstruction& front = *rank.lanes[lane][rank.next[lane]];
          if (static_cast<Lane>(lane) == Lane::kPp) {
            if (!AdvancePost(static_cast<int>(r), rank)) break;
          } else {
            const std::optional<double> start = StartOf(rank, lane, front);
            if (!start) break;
            const double cost = CostOf(plan_, front.instruction, costs_);
            End(rank, lane, front, *start + cost);
            rank.busy += cost;
            if (cost > 0) rank.last_pass = rank.free[lane];
          }
          any = true;
        }
      }
    }
    return any;
  }

  // The post at the front of lane pp: announces itself, and ends if all partners have announced theirs.
  bool AdvancePost(int r, Rank& rank) {
    constexpr size_t kLane = static_cast<size_t>(Lane::kPp);
    std::vector<const CompiledInstruction*> post;
    double start = 0;
    for (size_t i = rank.next[kLane]; i < rank.lanes[kLane].size(); ++i) {
      const CompiledInstruction* transfer = rank.lanes[kLane][i];
      if (!post.empty() && transfer->instruction.post != post[0]->instruction.post) break;
      const std::optional<double> ready = StartOf(rank, kLane, *transfer);
      if (!ready) return false;
      start = std::max(start, *ready);
      post.push_back(transfer);
    }
    double end = start;
    bool complete = true;
    for (const CompiledInstruction* transfer : post) {
      std::map<int, double>& both = announced_[IdOf(r, transfer->instruction)];
      both[r] = start;
      complete = complete && both.size() == 2;
      for (const auto& [partner, time] : both) end = std::max(end, time);
    }
    if (!complete) return false;
    for (const CompiledInstruction* transfer : post) End(rank, kLane, *transfer, end);
    return true;
  }

  const Plan& plan_;
  const Costs costs_;
  std::vector<Rank> ranks_;
  std::map<TransferId, std::map<int, double>> announced_;  // when either side was there
};

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
  const Timeline timeline(plan, CompileAll(plan, ProgramKind::kTrain), costs);
  EXPECT_TRUE(timeline.Finished());
  return timeline.Bubble();
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

// Random shapes: every instruction ends, and no rank computes in two passes at once.
TEST(SimulatedPrograms, EndForRandomShapes) {
  const unsigned seed = testing::Seed();
  SCOPED_TRACE(fmt::format("TRIREME_TEST_SEED={}", seed));
  testing::RandomPlans plans(seed);
  for (int draw = 0; draw < 100; ++draw) {
    SmallPlan small = plans.NextPipeline();
    small.tp = 1;
    small.ranks = small.pp;
    SCOPED_TRACE(testing::Describe(small));
    const Plan plan = PlanOf(small);
    const Timeline timeline(plan, CompileAll(plan, ProgramKind::kTrain), {});
    EXPECT_TRUE(timeline.Finished());
    EXPECT_GE(timeline.Bubble(), -1e-12);
  }
}

}  // namespace
}  // namespace trireme
