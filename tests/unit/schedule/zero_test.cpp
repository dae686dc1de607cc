// The ZeRO programs against the ones written by hand in ARCHITECTURE.md.
#include "engine/schedule/buffers.h"
#include "engine/schedule/make_program.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/schedule/compile.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

using testing::PlanOf;
using testing::SmallPlan;

// Units of a model of two blocks, as the example writes them.
std::string UnitName(int unit) { return unit == 0 ? "E" : unit == 3 ? "H" : fmt::format("B{}", unit - 1); }

std::string Short(const BufferKey& key) {
  static const std::vector<std::string> kLetters = {"w", "p", "s",  "n", "hs", "hst", "st", "t", "G",
                                                    "x", "a", "dx", "d", "g",  "r",   "ws", "hw"};
  std::string text = kLetters[static_cast<size_t>(key.kind)];
  if (key.slot != 0) text += std::to_string(key.slot);
  if (key.unit >= 0) text += "[" + UnitName(key.unit) + "]";
  return text;
}

std::string Short(const char* word, const std::vector<BufferKey>& keys) {
  if (keys.empty()) return "";
  std::vector<std::string> names;
  for (const BufferKey& key : keys) names.push_back(Short(key));
  std::string text = fmt::format(" {}", word);
  for (const std::string& name : names) text += " " + name;
  return text;
}

std::vector<std::string> Lines(const Program& program) {
  std::vector<std::string> lines;
  for (const Instruction& i : program.instructions) {
    std::string line(Name(i.op));
    const bool has_units = i.op != Op::kLoad && i.op != Op::kStepStats && !CopiesState(i);
    if (has_units) line += " " + UnitName(i.units.first);
    if (has_units && i.units.last != i.units.first) line += ".." + UnitName(i.units.last);
    if (i.micro_batch >= 0) line += fmt::format(" {}", i.micro_batch);
    line += fmt::format(" {}", Name(i.lane));
    if (i.group != Group::kNone) line += fmt::format(" {}", Name(i.group));
    line += Short("reads", i.reads) + Short("writes", i.writes) + Short("adds", i.adds) + Short("frees", i.frees);
    lines.push_back(line);
  }
  return lines;
}

// Buckets E, B0, B1..H.
SmallPlan Example(int stage) {
  SmallPlan small;
  small.zero_stage = stage;
  const Plan plan = PlanOf(small);
  small.bucket_elements = plan.units[2].padded_elements + plan.units[3].padded_elements;
  return small;
}

TEST(Zero, ProgramOfStage2IsTheExample) {
  const Plan plan = PlanOf(Example(2));
  ASSERT_EQ(plan.buckets.size(), 3u);
  const std::vector<std::string> want = {
      "Load 0 up reads st writes t",
      "Forward E 0 compute reads w[E] t writes x[E]",
      "Forward B0 0 compute reads w[B0] x[E] writes x[B0] a[B0]",
      "Forward B1 0 compute reads w[B1] x[B0] writes x[B1] a[B1]",
      "Forward H 0 compute reads w[H] w[E] x[B1] t writes dx[B1] adds g[H] g[E] st frees x[B1]",
      "Backward B1 0 compute reads w[B1] a[B1] x[B0] dx[B1] writes dx[B0] adds g[B1] frees a[B1] x[B0] dx[B1]",
      "Reduce B1..H 0 dp dp reads g[B1] g[H] writes r[B1] r[H] adds s[B1] s[H] frees g[B1] r[B1] g[H] r[H]",
      "Backward B0 0 compute reads w[B0] a[B0] x[E] dx[B0] writes dx[E] adds g[B0] frees a[B0] x[E] dx[B0]",
      "Reduce B0 0 dp dp reads g[B0] writes r[B0] adds s[B0] frees g[B0] r[B0]",
      "Backward E 0 compute reads t dx[E] adds g[E] frees t dx[E]",
      "Reduce E 0 dp dp reads g[E] writes r[E] adds s[E] frees g[E] r[E]",
      "StepStats compute reads s[E] s[B0] s[B1] s[H] st writes st",
      "StepStats dp world reads st writes st",
      "Update E compute reads s[E] st writes p[E] w[E]",
      "Gather E dp dp reads w[E] writes w[E]",
      "Update B0 compute reads s[B0] st writes p[B0] w[B0]",
      "Gather B0 dp dp reads w[B0] writes w[B0]",
      "Update B1..H compute reads s[B1] s[H] st writes p[B1] w[B1] p[H] w[H]",
      "Gather B1..H dp dp reads w[B1] w[H] writes w[B1] w[H]",
      "CopyDown down reads st",
  };
  EXPECT_EQ(Lines(MakeProgram(plan, ProgramKind::kTrain, 0)), want);
}

TEST(Zero, ProgramOfStage3GathersAheadAndReleases) {
  const Plan plan = PlanOf(Example(3));
  const std::vector<std::string> want = {
      "Load 0 up reads st writes t",
      "Gather E 0 dp dp reads w[E] writes G[E]",
      "Gather B0 0 dp dp reads w[B0] writes G[B0]",
      "Forward E 0 compute reads G[E] t writes x[E]",
      "Release E 0 compute frees G[E]",
      "Gather B1..H 0 dp dp reads w[B1] w[H] writes G[B1] G[H]",
      "Gather E 0 dp dp reads w[E] writes G2[E]",
      "Forward B0 0 compute reads G[B0] x[E] writes x[B0] a[B0]",
      "Release B0 0 compute frees G[B0]",
      "Gather B0 0 dp dp reads w[B0] writes G1[B0]",
      "Forward B1 0 compute reads G[B1] x[B0] writes x[B1] a[B1]",
      "Forward H 0 compute reads G[H] G2[E] x[B1] t writes dx[B1] adds g[H] g[E] st frees x[B1]",
      "Release H 0 compute frees G[H]",
      "Release E 0 compute frees G2[E]",
      "Backward B1 0 compute reads G[B1] a[B1] x[B0] dx[B1] writes dx[B0] adds g[B1] frees a[B1] x[B0] dx[B1]",
      "Release B1 0 compute frees G[B1]",
      "Reduce B1..H 0 dp dp reads g[B1] g[H] writes r[B1] r[H] adds s[B1] s[H] frees g[B1] r[B1] g[H] r[H]",
      "Backward B0 0 compute reads G1[B0] a[B0] x[E] dx[B0] writes dx[E] adds g[B0] frees a[B0] x[E] dx[B0]",
      "Release B0 0 compute frees G1[B0]",
      "Reduce B0 0 dp dp reads g[B0] writes r[B0] adds s[B0] frees g[B0] r[B0]",
      "Backward E 0 compute reads t dx[E] adds g[E] frees t dx[E]",
      "Reduce E 0 dp dp reads g[E] writes r[E] adds s[E] frees g[E] r[E]",
      "StepStats compute reads s[E] s[B0] s[B1] s[H] st writes st",
      "StepStats dp world reads st writes st",
      "Update E compute reads s[E] st writes p[E] w[E]",
      "Update B0 compute reads s[B0] st writes p[B0] w[B0]",
      "Update B1..H compute reads s[B1] s[H] st writes p[B1] w[B1] p[H] w[H]",
      "CopyDown down reads st",
  };
  EXPECT_EQ(Lines(MakeProgram(plan, ProgramKind::kTrain, 0)), want);
}

TEST(Zero, StagesZeroAndOneReduceOnceAfterTheLastMicroBatch) {
  for (const int stage : {0, 1}) {
    SmallPlan small = Example(stage);
    small.micro_batches = 3;
    const Program program = MakeProgram(PlanOf(small), ProgramKind::kTrain, 0);
    std::vector<std::string> reduces;
    for (const std::string& line : Lines(program)) {
      if (line.starts_with("Reduce")) reduces.push_back(line);
    }
    const std::vector<std::string> want = {"Reduce B1..H dp dp reads s[B1] s[H] writes s[B1] s[H]",
                                           "Reduce B0 dp dp reads s[B0] writes s[B0]",
                                           "Reduce E dp dp reads s[E] writes s[E]"};
    EXPECT_EQ(reduces, want) << "stage " << stage;
  }
}

TEST(Zero, OneRankReducesAndGathersNothing) {
  SmallPlan small = Example(3);
  small.ranks = 1;
  const Plan plan = PlanOf(small);
  EXPECT_EQ(plan.effective_zero_stage, 0);
  for (const Instruction& i : MakeProgram(plan, ProgramKind::kTrain, 0).instructions) {
    EXPECT_TRUE(i.op != Op::kReduce && i.op != Op::kGather && i.op != Op::kRelease);
  }
}

TEST(Zero, RecomputationRunsJustBeforeBackward) {
  SmallPlan small = Example(2);
  small.recompute = Recompute::kFull;
  const std::vector<std::string> lines = Lines(MakeProgram(PlanOf(small), ProgramKind::kTrain, 0));
  EXPECT_EQ(lines[2], "Forward B0 0 compute reads w[B0] x[E] writes x[B0] a1[B0] frees a1[B0]");
  EXPECT_EQ(lines[5], "Recompute B1 0 compute reads w[B1] x[B0] writes a[B1]");
  EXPECT_TRUE(lines[6].starts_with("Backward B1"));
}

TEST(Zero, EvaluationKeepsNothing) {
  const Plan plan = PlanOf(Example(2));
  const std::vector<std::string> want = {
      "Load 0 up reads st writes t",
      "Forward E 0 compute reads w[E] t writes x[E]",
      "Forward B0 0 compute reads w[B0] x[E] writes x[B0] a1[B0] frees x[E] a1[B0]",
      "Forward B1 0 compute reads w[B1] x[B0] writes x[B1] a1[B1] frees x[B0] a1[B1]",
      "Forward H 0 compute reads w[H] w[E] x[B1] t adds st frees x[B1] t",
      "StepStats dp world reads st writes st",
      "CopyDown down reads st",
  };
  EXPECT_EQ(Lines(MakeProgram(plan, ProgramKind::kEval, 0)), want);
}

// Lamb: norms of all buckets first, and each bucket's update after their sum.
TEST(Zero, NormsOfLambAreSummedBetweenTheHalvesOfTheUpdate) {
  SmallPlan small = Example(2);
  small.optimizer = OptimizerType::kLamb;
  const std::vector<std::string> lines = Lines(MakeProgram(PlanOf(small), ProgramKind::kTrain, 0));
  const std::vector<std::string> step(lines.end() - 14, lines.end());
  const std::vector<std::string> want = {
      "StepStats dp world reads st writes st",
      "UpdateNorms E compute reads s[E] w[E] st writes p[E] n[E]",
      "ReduceNorms E dp dp reads n[E] writes n[E]",
      "UpdateNorms B0 compute reads s[B0] w[B0] st writes p[B0] n[B0]",
      "ReduceNorms B0 dp dp reads n[B0] writes n[B0]",
      "UpdateNorms B1..H compute reads s[B1] w[B1] s[H] w[H] st writes p[B1] n[B1] p[H] n[H]",
      "ReduceNorms B1..H dp dp reads n[B1] n[H] writes n[B1] n[H]",
      "Update E compute reads n[E] st writes p[E] w[E]",
      "Gather E dp dp reads w[E] writes w[E]",
      "Update B0 compute reads n[B0] st writes p[B0] w[B0]",
      "Gather B0 dp dp reads w[B0] writes w[B0]",
      "Update B1..H compute reads n[B1] n[H] st writes p[B1] w[B1] p[H] w[H]",
      "Gather B1..H dp dp reads w[B1] w[H] writes w[B1] w[H]",
      "CopyDown down reads st",
  };
  EXPECT_EQ(step, want);
  small.zero_stage = 0;  // every rank has all of every tensor: nothing to sum
  for (const std::string& line : Lines(MakeProgram(PlanOf(small), ProgramKind::kTrain, 0))) {
    EXPECT_FALSE(line.starts_with("ReduceNorms")) << line;
  }
}

// The gradient of a bucket goes down as soon as it is whole; updates and copies up follow one another bucket by bucket.
TEST(Zero, OffloadedOptimizerRunsOnItsLane) {
  SmallPlan small = Example(2);
  small.offload_optimizer = 1;
  const std::vector<std::string> lines = Lines(MakeProgram(PlanOf(small), ProgramKind::kTrain, 0));
  EXPECT_EQ(lines[7], "CopyDown B1..H down reads s[B1] s[H] writes hs[B1] hs[H]");
  const std::vector<std::string> step(lines.end() - 13, lines.end());
  const std::vector<std::string> want = {
      "CopyDown E down reads s[E] writes hs[E]",
      "StepStats compute reads s[E] s[B0] s[B1] s[H] st writes st",
      "StepStats dp world reads st writes st",
      "CopyDown down reads st writes hst",
      "Update E cpu reads hs[E] hst writes p[E] hw[E]",
      "CopyUp E up reads hw[E] writes w[E] frees hw[E]",
      "Gather E dp dp reads w[E] writes w[E]",
      "Update B0 cpu reads hs[B0] hst writes p[B0] hw[B0]",
      "CopyUp B0 up reads hw[B0] writes w[B0] frees hw[B0]",
      "Gather B0 dp dp reads w[B0] writes w[B0]",
      "Update B1..H cpu reads hs[B1] hs[H] hst writes p[B1] hw[B1] p[H] hw[H]",
      "CopyUp B1..H up reads hw[B1] hw[H] writes w[B1] w[H] frees hw[B1] hw[H]",
      "Gather B1..H dp dp reads w[B1] w[H] writes w[B1] w[H]",
  };
  EXPECT_EQ(step, want);
}

TEST(Zero, OffloadedWeightsComeUpBeforeTheyAreGathered) {
  SmallPlan small = Example(3);
  small.offload_param = true;
  const std::vector<std::string> lines = Lines(MakeProgram(PlanOf(small), ProgramKind::kTrain, 0));
  EXPECT_EQ(lines[1], "CopyUp E 0 up reads w[E] writes ws[E]");
  EXPECT_EQ(lines[2], "Gather E 0 dp dp reads ws[E] writes G[E] frees ws[E]");
  EXPECT_EQ(lines.back(), "CopyDown down reads st");
  EXPECT_EQ(lines[lines.size() - 3], "Update B1..H compute reads s[B1] s[H] st writes p[B1] ws[B1] p[H] ws[H]");
  EXPECT_EQ(lines[lines.size() - 2],  // what comes into the arena next waits for this
            "CopyDown B1..H down reads ws[B1] ws[H] writes w[B1] w[H] st frees ws[B1] ws[H]");
  small.offload_optimizer = 1;
  const std::vector<std::string> both = Lines(MakeProgram(PlanOf(small), ProgramKind::kTrain, 0));
  EXPECT_EQ(both.back(), "Update B1..H cpu reads hs[B1] hs[H] hst writes p[B1] w[B1] p[H] w[H]");
  small.ranks = 1;  // what it owns is the whole: CopyUp is the gather
  const Plan plan = PlanOf(small);
  EXPECT_EQ(plan.effective_zero_stage, 3);
  const std::vector<std::string> alone = Lines(MakeProgram(plan, ProgramKind::kTrain, 0));
  EXPECT_EQ(alone[1], "CopyUp E 0 up reads w[E] writes G[E]");
  for (const std::string& line : alone) EXPECT_FALSE(line.starts_with("Gather") || line.starts_with("Reduce")) << line;
}

TEST(Zero, CommunicationInAnotherTypeGoesThroughStaging) {
  SmallPlan small = Example(2);
  Config config = testing::ConfigOf(small);
  config.communication_data_type = DType::kBFloat16;
  PlanInputs inputs;
  inputs.world_size = 2;
  inputs.sequence_length = 8;
  const Plan plan = MakePlan(config, testing::ModelOf(small), inputs);
  const std::vector<std::string> lines = Lines(MakeProgram(plan, ProgramKind::kTrain, 0));
  const std::string want = "Reduce E 0 dp dp reads g[E] writes r[E] r1[E] adds s[E] frees g[E] r[E] r1[E]";
  EXPECT_NE(std::find(lines.begin(), lines.end(), want), lines.end());
  const int64_t padded = plan.units[0].padded_elements;
  EXPECT_EQ(BufferBytes(plan, {BufferKind::kStaging, 0, 0, 0, 0}), padded / 2 * 2);
  EXPECT_EQ(BufferBytes(plan, {BufferKind::kStaging, 0, 0, 0, 1}), padded * 2);
}

}  // namespace
}  // namespace trireme
