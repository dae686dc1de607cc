// Verify objects to a program that was damaged, whatever the damage.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/schedule/verify.h"
#include "tests/property/schedule/random_plan.h"

namespace trireme {
namespace {

using testing::CompileAll;
using testing::PlanOf;
using testing::RandomPlans;
using testing::SmallPlan;

using Ranks = std::vector<CompiledProgram>;

class Mutations : public ::testing::Test {
 protected:
  static constexpr int kDraws = 20;

  // Calls `mutate(plan, ranks)` for random sound programs of several ranks. No wait is there only to bound memory, so
  // that each one is needed.
  template <typename Mutate>
  void ForEach(Mutate mutate) {
    const unsigned seed = testing::Seed();
    SCOPED_TRACE(fmt::format("TRIREME_TEST_SEED={}", seed));
    RandomPlans plans(seed);
    for (int draw = 0; draw < kDraws; ++draw) {
      SmallPlan small = plans.Next();
      small.ranks = small.tp * plans.Draw(2, 3);
      small.layers = plans.Draw(1, 3);
      if (small.activations.runs.size() > 1) small.activations.runs.resize(static_cast<size_t>(small.layers));
      small.micro_batches = plans.Draw(1, 2);
      SCOPED_TRACE(testing::Describe(small));
      const Plan plan = PlanOf(small);
      const Ranks ranks = CompileAll(plan, ProgramKind::kTrain, /*max_unjoined_frees=*/1'000'000);
      ASSERT_TRUE(Verify(plan, ranks).ok());
      mutate(plan, ranks);
      if (HasFailure()) return;
    }
  }

  static bool Contains(const VerifyReport& report, const std::string& text) {
    return std::any_of(report.problems.begin(), report.problems.end(),
                       [&](const std::string& problem) { return problem.find(text) != std::string::npos; });
  }
};

TEST_F(Mutations, AWaitIsDropped) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    for (size_t i = 0; i < ranks[0].instructions.size(); ++i) {
      for (size_t w = 0; w < ranks[0].instructions[i].waits.size(); ++w) {
        CompiledProgram damaged = ranks[0];
        std::vector<int32_t>& waits = damaged.instructions[i].waits;
        waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(w));
        EXPECT_FALSE(VerifySequence(plan, {&damaged, &damaged}).ok())
            << "wait " << w << " of " << Describe(damaged.instructions[i].instruction, plan) << " #" << i;
      }
    }
  });
}

TEST_F(Mutations, AWaitPointsForward) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    Ranks damaged = ranks;
    damaged[1].instructions[0].waits.push_back(damaged[1].instructions.back().instruction.id);
    EXPECT_TRUE(Contains(Verify(plan, damaged), "which does not come before it"));
    EXPECT_TRUE(Contains(Verify(plan, damaged), "deadlock"));
  });
}

// The whole of a program's carried hazards at a key: what the next step reads while the last one still writes.
TEST_F(Mutations, CarriedHazardsAreDropped) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    CompiledProgram damaged = ranks[0];
    const auto drop = [&](BufferKind kind, Op op) {
      for (CompiledInstruction& compiled : damaged.instructions) {
        if (compiled.instruction.op == op)
          std::erase_if(compiled.carried, [&](const auto& c) { return c.key.kind == kind; });
      }
    };
    drop(BufferKind::kStepState, Op::kLoad);
    // What an update on the host made comes up on the lane that loads: it follows StepStats by itself.
    const bool follows = !plan.weights_on_host && plan.offloads();
    EXPECT_EQ(VerifySequence(plan, {&damaged, &damaged}).ok(), follows);
    EXPECT_TRUE(VerifySequence(plan, {&damaged}).ok());
    damaged = ranks[0];
    const int stage = plan.effective_zero_stage;
    if (stage == 0) return;                                        // weights stay on one lane
    if (plan.weights_on_host && !plan.OptimizerOnHost(0)) return;  // Load waits for the last CopyDown of weights
    drop(BufferKind::kWeights, plan.weights_on_host ? Op::kCopyUp : stage == 3 ? Op::kGather : Op::kForward);
    EXPECT_FALSE(VerifySequence(plan, {&damaged, &damaged}).ok());
  });
}

TEST_F(Mutations, AnOffsetIsShifted) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    for (size_t i = 0; i < ranks[0].instructions.size(); ++i) {
      for (int what = 0; what < 3; ++what) {
        Ranks damaged = ranks;
        CompiledInstruction& compiled = damaged[1].instructions[i];
        std::vector<BufferUse>& uses = what == 0 ? compiled.reads : what == 1 ? compiled.writes : compiled.adds;
        const auto use = std::find_if(uses.begin(), uses.end(), [](const BufferUse& u) { return u.offset >= 0; });
        if (use == uses.end()) continue;
        // Written and freed by this one instruction: only what overlaps is wrong. Past the end is always wrong.
        const std::vector<BufferKey>& frees = compiled.instruction.frees;
        const bool scratch = what == 1 && std::find(frees.begin(), frees.end(), use->key) != frees.end();
        use->offset += scratch ? damaged[1].arena_bytes : 512;
        EXPECT_FALSE(Verify(plan, damaged).ok()) << Describe(compiled.instruction, plan) << " " << Describe(use->key);
      }
    }
  });
}

// Every use of a buffer moves onto a neighbour that lives at the same time.
TEST_F(Mutations, TwoLiveBuffersOverlap) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    CompiledProgram damaged = ranks[0];
    const BufferKey first{BufferKind::kBoundary, 0, 0, 0, 0};
    const BufferKey second{BufferKind::kTokens, -1, 0, 0, 0};
    int64_t target = -1;
    for (CompiledInstruction& compiled : damaged.instructions) {
      for (auto* uses : {&compiled.reads, &compiled.writes, &compiled.adds}) {
        for (BufferUse& use : *uses) {
          if (use.key == second) target = use.offset;
          if (use.key == first) use.offset = target;
        }
      }
    }
    EXPECT_TRUE(Contains(VerifySequence(plan, {&damaged}), "which is live"));
  });
}

TEST_F(Mutations, TwoCollectivesAreSwappedOnOneRank) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    std::vector<size_t> collectives;
    for (size_t i = 0; i < ranks[1].instructions.size(); ++i) {
      if (ranks[1].instructions[i].instruction.group != Group::kNone) collectives.push_back(i);
    }
    ASSERT_GE(collectives.size(), 2u);
    for (size_t k = 0; k + 1 < collectives.size(); ++k) {
      Ranks damaged = ranks;
      CompiledInstruction &a = damaged[1].instructions[collectives[k]],
                          &b = damaged[1].instructions[collectives[k + 1]];
      // To the other ranks these are one and the same: a bucket gathered for its recomputation and its backward pass.
      const auto seen = [](const Instruction& i) {
        return std::tuple(i.op, i.group, i.units.first, i.units.last, i.micro_batch);
      };
      if (seen(a.instruction) == seen(b.instruction)) continue;
      std::swap(a, b);
      std::swap(a.instruction.id, b.instruction.id);
      EXPECT_TRUE(Contains(Verify(plan, damaged), "collective ")) << k;
    }
  });
}

TEST_F(Mutations, ACollectiveIsMissingOnOneRank) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    Ranks damaged = ranks;
    for (CompiledInstruction& compiled : damaged[1].instructions) {
      if (compiled.instruction.op == Op::kReduce) {
        compiled.instruction.group = Group::kNone;
        break;
      }
    }
    const VerifyReport report = Verify(plan, damaged);
    EXPECT_TRUE(Contains(report, "collective "));
  });
}

TEST_F(Mutations, LanesWaitForEachOther) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    Ranks damaged = ranks;
    for (CompiledInstruction& compiled : damaged[0].instructions) {
      if (compiled.instruction.group == Group::kWorld) compiled.instruction.group = Group::kNone;
    }
    EXPECT_TRUE(Contains(Verify(plan, damaged), "deadlock"));
  });
}

TEST_F(Mutations, AFreeIsDropped) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    for (size_t i = 0; i < ranks[0].instructions.size(); ++i) {
      for (size_t f = 0; f < ranks[0].instructions[i].instruction.frees.size(); ++f) {
        CompiledProgram damaged = ranks[0];
        std::vector<BufferKey>& frees = damaged.instructions[i].instruction.frees;
        frees.erase(frees.begin() + static_cast<std::ptrdiff_t>(f));
        EXPECT_TRUE(Contains(VerifySequence(plan, {&damaged}), "outlives the program"));
      }
    }
  });
}

TEST_F(Mutations, ABufferIsFreedTwice) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    for (size_t i = 0; i + 1 < ranks[0].instructions.size(); ++i) {
      if (ranks[0].instructions[i].instruction.frees.empty()) continue;
      CompiledProgram damaged = ranks[0];
      damaged.instructions.back().instruction.frees = {ranks[0].instructions[i].instruction.frees[0]};
      EXPECT_TRUE(Contains(VerifySequence(plan, {&damaged}), "again"));
    }
  });
}

TEST_F(Mutations, ABufferIsReadBeforeItIsWritten) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    for (size_t i = 0; i < ranks[0].instructions.size(); ++i) {
      for (const BufferUse& use : ranks[0].instructions[i].writes) {
        if (IsPersistent(use.key.kind)) continue;
        CompiledProgram damaged = ranks[0];
        CompiledInstruction& early = damaged.instructions[i == 0 ? 0 : i - 1];
        early.instruction.reads.push_back(use.key);
        early.reads.push_back(use);
        EXPECT_TRUE(Contains(VerifySequence(plan, {&damaged}), "before anything wrote it"));
      }
    }
  });
}

TEST_F(Mutations, ABufferIsReadAfterItWasFreed) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    for (size_t i = 0; i + 1 < ranks[0].instructions.size(); ++i) {
      for (const BufferKey& key : ranks[0].instructions[i].instruction.frees) {
        CompiledProgram damaged = ranks[0];
        CompiledInstruction& late = damaged.instructions[i + 1];
        late.instruction.reads.push_back(key);
        late.reads.push_back({key, 0, 0, false});
        EXPECT_TRUE(Contains(VerifySequence(plan, {&damaged}), "after it was freed"));
      }
    }
  });
}

TEST_F(Mutations, AFirstAddIsMistaken) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    for (size_t i = 0; i < ranks[0].instructions.size(); ++i) {
      for (size_t a = 0; a < ranks[0].instructions[i].adds.size(); ++a) {
        CompiledProgram damaged = ranks[0];
        BufferUse& use = damaged.instructions[i].adds[a];
        use.first_add = !use.first_add;
        EXPECT_FALSE(VerifySequence(plan, {&damaged}).ok());
      }
    }
  });
}

TEST_F(Mutations, ABufferIsTooSmall) {
  ForEach([&](const Plan& plan, const Ranks& ranks) {
    CompiledProgram damaged = ranks[0];
    damaged.instructions[0].writes[0].bytes -= 4;
    EXPECT_TRUE(Contains(VerifySequence(plan, {&damaged}), "the plan needs"));
  });
}

}  // namespace
}  // namespace trireme
