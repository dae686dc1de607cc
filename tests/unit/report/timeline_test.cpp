#include "engine/report/timeline.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/error_id.h"
#include "tests/support/temp_folder.h"

namespace trireme::report {
namespace {

using trireme::testing::IdOf;

Span At(Lane lane, SpanKind kind, double start, double end) { return {lane, kind, start, end, 0, "x"}; }

TEST(Timeline, SharesOfAStep) {
  Timeline timeline;
  timeline.step_seconds = 10;
  timeline.rows.push_back({"rank 0",
                           "",
                           {At(Lane::kCompute, SpanKind::kForward, 0, 4), At(Lane::kCompute, SpanKind::kWait, 1, 2),
                            At(Lane::kCompute, SpanKind::kWait, 4, 5), At(Lane::kCompute, SpanKind::kBackward, 5, 8),
                            At(Lane::kCompute, SpanKind::kUpdate, 9, 10), At(Lane::kDp, SpanKind::kReduce, 7, 9),
                            At(Lane::kPp, SpanKind::kTransfer, 8, 9.5), At(Lane::kUp, SpanKind::kLoad, 0, 2)}});
  const Shares one = SharesOf(timeline);
  EXPECT_DOUBLE_EQ(one.busy, 0.7);  // 3 of the forward, 3 of the backward, 1 of the update
  EXPECT_DOUBLE_EQ(one.waiting, 0.3);
  EXPECT_DOUBLE_EQ(one.communication, 0.25);  // 7 to 9.5: two lanes at once count once
  EXPECT_DOUBLE_EQ(one.bubble, 0.125);        // of 0 to 8 the gap from 4 to 5
  timeline.rows.push_back({"rank 1", "", {At(Lane::kCompute, SpanKind::kForward, 4, 8)}});
  EXPECT_DOUBLE_EQ(SharesOf(timeline).bubble, 5.0 / 16);
  timeline.rows[1].spans.push_back(At(Lane::kDp, SpanKind::kGather, 0, 4));  // it waits for weights, not for a stage
  EXPECT_DOUBLE_EQ(SharesOf(timeline).bubble, 1.0 / 16);
}

class Traces : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = testing::NewTempFolder("traces"); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  static std::string Event(int rank, int lane, const char* category, double begin, double length, int step) {
    return ",\n{\"ph\":\"X\",\"pid\":" + std::to_string(rank) + ",\"tid\":" + std::to_string(lane) +
           ",\"name\":\"it\",\"cat\":\"" + category + "\",\"ts\":" + std::to_string(begin) +
           ",\"dur\":" + std::to_string(length) + ",\"args\":{\"step\":" + std::to_string(step) +
           ",\"id\":1,\"micro_batch\":2,\"units\":[0,0]}}";
  }
  static std::string Trace(int rank, double origin, const std::string& events) {
    return "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"rank\":" + std::to_string(rank) +
           ",\"origin_us\":" + std::to_string(origin) +
           "},\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"rank\"}}" +
           events + "\n]}\n";
  }
  std::filesystem::path folder_;
};

TEST_F(Traces, ClocksOfTheRanksAreOneAndTheLastWholeStepIsShown) {
  // Rank 1's first event is 100 us after rank 0's on the machine's clock.
  const auto a = Write("a", Trace(0, 1000,
                                  Event(0, 0, "Forward", 0, 50, 4) + Event(0, 3, "Gather", 60, 500, 4) +
                                      Event(0, 0, "Forward", 400, 100, 5) + Event(0, 0, "Wait", 420, 10, 5) +
                                      Event(0, 0, "Forward", 900, 100, 6))),
             b = Write("b", Trace(1, 1100,
                                  Event(1, 0, "Forward", 0, 50, 4) + Event(1, 0, "Backward", 450, 50, 5) +
                                      Event(1, 0, "Forward", 900, 100, 6)));
  const Timeline timeline = ReadTraces({b, a});
  EXPECT_NEAR(timeline.step_seconds, 500e-6, 1e-12);
  ASSERT_EQ(timeline.rows.size(), 2U);
  EXPECT_EQ(timeline.rows[0].label, "rank 0");
  ASSERT_EQ(timeline.rows[0].spans.size(), 3U);
  EXPECT_EQ(timeline.rows[0].spans[1].kind, SpanKind::kWait);
  EXPECT_NEAR(timeline.rows[0].spans[1].start, 20e-6, 1e-12);
  EXPECT_EQ(timeline.rows[0].spans[2].kind, SpanKind::kGather);  // of the step before, still running
  EXPECT_NEAR(timeline.rows[0].spans[2].end, 160e-6, 1e-12);
  ASSERT_EQ(timeline.rows[1].spans.size(), 1U);
  EXPECT_NEAR(timeline.rows[1].spans[0].start, 150e-6, 1e-12);
  EXPECT_EQ(timeline.rows[1].spans[0].micro_batch, 2);
}

TEST_F(Traces, WhatIsNoTraceIsNamed) {
  EXPECT_EQ(IdOf([&] { ReadTraces({Write("a", "[]\n")}); }), "RPT001");
  EXPECT_EQ(IdOf([&] { ReadTraces({Write("b", Trace(0, 0, ",\n{\"ph\":"))}); }), "RPT001");
  EXPECT_EQ(IdOf([&] { ReadTraces({Write("c", Trace(0, 0, Event(0, 0, "Foreign", 0, 1, 3)))}); }), "RPT001");
  EXPECT_EQ(IdOf([&] {
              ReadTraces({Write("d", Trace(0, 0, Event(0, 0, "Forward", 0, 1, 3))),
                          Write("e", Trace(1, 0, Event(1, 0, "Forward", 0, 1, 4)))});
            }),
            "RPT002");
}

}  // namespace
}  // namespace trireme::report
