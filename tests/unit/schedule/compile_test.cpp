// Waits, carried hazards, first adds and offsets, on programs written by hand.
#include "engine/schedule/compile.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace trireme {
namespace {

using Keys = std::vector<BufferKey>;

BufferKey Temp(int unit) { return {BufferKind::kBoundary, static_cast<int16_t>(unit), 0, 0, 0}; }
BufferKey Kept(int unit) { return {BufferKind::kGradientSum, static_cast<int16_t>(unit), 0, -1, 0}; }

class CompileTest : public ::testing::Test {
 protected:
  int Add(Lane lane, Keys reads, Keys writes, Keys adds = {}, Keys frees = {}) {
    Instruction i;
    i.id = static_cast<int32_t>(program_.instructions.size());
    i.lane = lane;
    i.reads = std::move(reads);
    i.writes = std::move(writes);
    i.adds = std::move(adds);
    i.frees = std::move(frees);
    program_.instructions.push_back(i);
    return i.id;
  }
  CompiledProgram Run(int max_unjoined_frees = 2) {
    CompileOptions options;
    options.bytes = [](const BufferKey& key) { return int64_t{100} * (key.unit + 1); };
    options.max_unjoined_frees = max_unjoined_frees;
    options.alignment = 100;
    return Compile(program_, options);
  }
  static const std::vector<int32_t>& WaitsOf(const CompiledProgram& program, int id) {
    return program.instructions[static_cast<size_t>(id)].waits;
  }

  Program program_;
};

TEST_F(CompileTest, ReaderWaitsForTheWriterOfAnotherLaneOnce) {
  const int write = Add(Lane::kCompute, {}, {Temp(0)});
  const int read = Add(Lane::kDp, {Temp(0)}, {});
  const int again = Add(Lane::kDp, {Temp(0)}, {});
  const CompiledProgram program = Run();
  EXPECT_EQ(WaitsOf(program, read), std::vector<int32_t>{write});
  EXPECT_TRUE(WaitsOf(program, again).empty());
}

TEST_F(CompileTest, WriterWaitsForReadersOfOtherLanes) {
  Add(Lane::kCompute, {}, {Temp(0)});
  const int dp = Add(Lane::kDp, {Temp(0)}, {});
  const int down = Add(Lane::kDown, {Temp(0)}, {});
  const int write = Add(Lane::kCompute, {}, {Temp(0)});
  EXPECT_EQ(WaitsOf(Run(), write), (std::vector<int32_t>{down, dp}));
}

TEST_F(CompileTest, WaitsThatFollowFromOthersAreLeftOut) {
  const int load = Add(Lane::kUp, {}, {Temp(0)});
  const int compute = Add(Lane::kCompute, {Temp(0)}, {Temp(1)});
  const int both = Add(Lane::kDp, {Temp(0), Temp(1)}, {});
  const CompiledProgram program = Run();
  EXPECT_EQ(WaitsOf(program, compute), std::vector<int32_t>{load});
  EXPECT_EQ(WaitsOf(program, both), std::vector<int32_t>{compute});
}

TEST_F(CompileTest, AddsOfTwoLanesExcludeEachOther) {
  Add(Lane::kCompute, {}, {}, {Kept(0)});
  const int dp = Add(Lane::kDp, {}, {}, {Kept(0)});
  const CompiledProgram program = Run();
  EXPECT_EQ(WaitsOf(program, dp), std::vector<int32_t>{0});
  EXPECT_TRUE(program.instructions[0].adds[0].first_add);
  EXPECT_FALSE(program.instructions[1].adds[0].first_add);
}

TEST_F(CompileTest, CarriedAtFirstReadersOfEachLaneAndFirstWriter) {
  Add(Lane::kUp, {Kept(0)}, {});
  Add(Lane::kUp, {Kept(0)}, {});
  Add(Lane::kDp, {Kept(0)}, {});
  Add(Lane::kCompute, {}, {}, {Kept(0)});
  Add(Lane::kCompute, {}, {}, {Kept(0)});
  Add(Lane::kDown, {Kept(0)}, {});
  const CompiledProgram program = Run();
  const auto carried = [&](size_t id) { return program.instructions[id].carried; };
  ASSERT_EQ(carried(0).size(), 1u);
  EXPECT_FALSE(carried(0)[0].writes);
  EXPECT_TRUE(carried(1).empty());
  ASSERT_EQ(carried(2).size(), 1u);
  EXPECT_FALSE(carried(2)[0].writes);
  ASSERT_EQ(carried(3).size(), 1u);
  EXPECT_TRUE(carried(3)[0].writes);
  EXPECT_TRUE(carried(4).empty());
  EXPECT_TRUE(carried(5).empty());
}

TEST_F(CompileTest, FreedRangeIsReusedByTheSameLane) {
  Add(Lane::kCompute, {}, {Temp(3)}, {}, {Temp(3)});
  Add(Lane::kCompute, {}, {Temp(1)}, {}, {Temp(1)});
  const CompiledProgram program = Run();
  EXPECT_EQ(program.instructions[1].writes[0].offset, 0);
  EXPECT_EQ(program.arena_bytes, 400);
}

TEST_F(CompileTest, FreedRangeIsNotReusedByALaneThatDidNotJoin) {
  Add(Lane::kCompute, {}, {Temp(3)}, {}, {Temp(3)});
  const int dp = Add(Lane::kDp, {}, {Temp(1)}, {}, {Temp(1)});
  const CompiledProgram apart = Run(/*max_unjoined_frees=*/1);
  EXPECT_EQ(apart.instructions[1].writes[0].offset, 400);
  EXPECT_TRUE(WaitsOf(apart, dp).empty());
  const CompiledProgram joined = Run(/*max_unjoined_frees=*/0);
  EXPECT_EQ(joined.instructions[1].writes[0].offset, 0);
  EXPECT_EQ(WaitsOf(joined, dp), std::vector<int32_t>{0});
  EXPECT_EQ(joined.arena_bytes, 400);
}

TEST_F(CompileTest, LargeBuffersComeFirstAndSmallOnesFillGaps) {
  Add(Lane::kCompute, {}, {Temp(0)});                          // 100, to the end
  Add(Lane::kCompute, {}, {Temp(4)});                          // 500
  Add(Lane::kCompute, {}, {Temp(2)}, {}, {Temp(4)});           // 300 beside 500
  Add(Lane::kCompute, {}, {Temp(3)}, {}, {Temp(2), Temp(3)});  // 400 beside 300
  Add(Lane::kCompute, {}, {}, {}, {Temp(0)});
  const CompiledProgram program = Run();
  EXPECT_EQ(program.instructions[1].writes[0].offset, 0);
  EXPECT_EQ(program.instructions[3].writes[0].offset, 0);
  EXPECT_EQ(program.instructions[2].writes[0].offset, 500);
  EXPECT_EQ(program.instructions[0].writes[0].offset, 800);
  EXPECT_EQ(program.arena_bytes, 900);
}

TEST_F(CompileTest, MicroBatchesTakeTheSamePlaces) {
  const auto temp = [](int micro_batch, int16_t unit) {
    return BufferKey{BufferKind::kBoundary, unit, 0, micro_batch, 0};
  };
  for (int i = 0; i < 4; ++i) {
    Add(Lane::kUp, {}, {temp(i, 0)});  // the next one is loaded while this one is in use
    if (i > 0) Add(Lane::kCompute, {temp(i - 1, 0)}, {temp(i - 1, 1)}, {}, {temp(i - 1, 0), temp(i - 1, 1)});
  }
  Add(Lane::kCompute, {}, {}, {}, {temp(3, 0)});
  const CompiledProgram program = Run(/*max_unjoined_frees=*/0);
  const auto offset = [&](size_t id) { return program.instructions[id].writes[0].offset; };
  EXPECT_NE(offset(0), offset(1));
  EXPECT_EQ(offset(0), offset(3));
  EXPECT_EQ(offset(1), offset(5));
  EXPECT_EQ(offset(2), offset(4));
  EXPECT_EQ(program.arena_bytes, 400);
}

TEST_F(CompileTest, ABufferWaitsForItsPlaceInTheLastMicroBatch) {
  const auto temp = [](int micro_batch) { return BufferKey{BufferKind::kGradient, 0, 0, micro_batch, 0}; };
  Add(Lane::kCompute, {}, {}, {temp(0)});
  const int reduce = Add(Lane::kDp, {temp(0)}, {}, {}, {temp(0)});
  const int next = Add(Lane::kCompute, {}, {}, {temp(1)});
  const CompiledProgram program = Run();
  EXPECT_EQ(WaitsOf(program, next), std::vector<int32_t>{reduce});
  EXPECT_EQ(program.arena_bytes, 100);
}

TEST_F(CompileTest, WrongProgramsAreRefused) {
  Add(Lane::kCompute, {Temp(0)}, {});
  EXPECT_THROW(Run(), Error);
  program_ = {};
  Add(Lane::kCompute, {}, {}, {}, {Temp(0)});
  EXPECT_THROW(Run(), Error);
}

}  // namespace
}  // namespace trireme
