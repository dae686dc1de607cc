// Orders of pipeline passes against published tables, and their bubbles and memory against formulas.
#include "engine/schedule/pipeline_order.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "engine/schedule/pipeline_times.h"

namespace trireme {
namespace {

using Kind = Pass::Kind;

std::string Text(const std::vector<Pass>& passes, int chunks) {
  std::string text;
  for (const Pass& pass : passes) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : " ",
                        pass.kind == Kind::kForward         ? "F"
                        : pass.kind == Kind::kBackward      ? "B"
                        : pass.kind == Kind::kBackwardInput ? "I"
                                                            : "W",
                        pass.micro_batch, chunks > 1 ? std::string(1, static_cast<char>('a' + pass.chunk)) : "");
  }
  return text;
}

std::vector<std::vector<Pass>> AllRanks(const PipelineShape& shape) {
  std::vector<std::vector<Pass>> passes;
  for (int rank = 0; rank < shape.pp_size; ++rank) passes.push_back(TrainPasses(shape, rank));
  return passes;
}

// Micro-batches of one chunk whose activations are alive, at most.
int PeakAlive(const std::vector<Pass>& passes) {
  int alive = 0, peak = 0;
  for (const Pass& pass : passes) {
    alive += pass.kind == Kind::kForward ? 1 : 0;
    peak = std::max(peak, alive);
    alive -= pass.kind == Kind::kBackward || pass.kind == Kind::kBackwardWeight ? 1 : 0;
  }
  return peak;
}

double BubbleOf(const PipelineShape& shape, double forward, double input, double weight) {
  return Bubble(TimePasses(shape, AllRanks(shape), [&](int, Kind kind) {
    return kind == Kind::kForward         ? forward
           : kind == Kind::kBackward      ? input + weight
           : kind == Kind::kBackwardInput ? input
                                          : weight;
  }));
}

constexpr PipelineSchedule k1F1B = PipelineSchedule::kOneForwardOneBackward;

TEST(PipelineOrder, OneForwardOneBackwardIsDeepSpeeds) {
  const PipelineShape shape{k1F1B, 4, 1, 8};
  EXPECT_EQ("F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7", Text(TrainPasses(shape, 0), 1));
  EXPECT_EQ("F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7", Text(TrainPasses(shape, 1), 1));
  EXPECT_EQ("F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7", Text(TrainPasses(shape, 2), 1));
  EXPECT_EQ("F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7", Text(TrainPasses(shape, 3), 1));
}

TEST(PipelineOrder, InterleavedIsMegatrons) {
  const PipelineShape shape{k1F1B, 4, 2, 8};
  EXPECT_EQ(
      "F0a F1a F2a F3a F0b F1b F2b F3b F4a F5a F6a B0b F7a B1b F4b B2b F5b B3b F6b B0a F7b B1a B2a B3a B4b B5b B6b B7b "
      "B4a B5a B6a B7a",
      Text(TrainPasses(shape, 0), 2));
  EXPECT_EQ(
      "F0a F1a F2a F3a F0b B0b F1b B1b F2b B2b F3b B3b F4a B0a F5a B1a F6a B2a F7a B3a F4b B4b F5b B5b F6b B6b F7b B7b "
      "B4a B5a B6a B7a",
      Text(TrainPasses(shape, 3), 2));
}

TEST(PipelineOrder, ZeroBubbleDefersAtMostItsRankInWeightGradients) {
  const PipelineShape shape{PipelineSchedule::kZeroBubble, 4, 1, 8};
  EXPECT_EQ("F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7", Text(TrainPasses(shape, 0), 1));
  EXPECT_EQ("F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7", Text(TrainPasses(shape, 1), 1));
  EXPECT_EQ("F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7", Text(TrainPasses(shape, 3), 1));
}

TEST(PipelineOrder, EveryPassComesOnceAndGradientsAddUpInTheOrderOfMicroBatches) {
  for (const PipelineSchedule kind : {PipelineSchedule::kGPipe, k1F1B, PipelineSchedule::kZeroBubble}) {
    for (const int pp : {1, 2, 3, 5}) {
      for (const int chunks : {1, 2, 3}) {
        if (chunks > 1 && kind != k1F1B) continue;
        for (const int m : {1, 2, pp, 2 * pp, 4 * pp + (chunks > 1 ? 0 : 1)}) {
          if (chunks > 1 && m % pp != 0) continue;
          const PipelineShape shape{kind, pp, chunks, m};
          for (int rank = 0; rank < pp; ++rank) {
            std::map<std::pair<Kind, int>, int> next;
            for (const Pass& pass : TrainPasses(shape, rank)) {
              EXPECT_EQ(pass.micro_batch, (next[{pass.kind, pass.chunk}]++)) << Name(kind) << " " << pp << " " << m;
            }
            const bool split = kind == PipelineSchedule::kZeroBubble;
            for (int chunk = 0; chunk < chunks; ++chunk) {
              EXPECT_EQ(m, (next[{Kind::kForward, chunk}]));
              EXPECT_EQ(split ? 0 : m, (next[{Kind::kBackward, chunk}]));
              EXPECT_EQ(split ? m : 0, (next[{Kind::kBackwardInput, chunk}]));
              EXPECT_EQ(split ? m : 0, (next[{Kind::kBackwardWeight, chunk}]));
            }
          }
          EXPECT_NO_THROW(BubbleOf(shape, 1, 1, 1));
        }
      }
    }
  }
}

TEST(PipelineOrder, BubblesAreTheFormulas) {
  for (const int p : {1, 2, 4, 7}) {
    for (const int m : {p, 2 * p, 5 * p}) {
      const double one = static_cast<double>(p - 1) / (m + p - 1);
      EXPECT_NEAR(one, BubbleOf({k1F1B, p, 1, m}, 1, 1, 1), 1e-12);
      EXPECT_NEAR(one, BubbleOf({PipelineSchedule::kGPipe, p, 1, m}, 1, 1, 1), 1e-12);
      for (const int v : {2, 3}) {
        EXPECT_NEAR(static_cast<double>(p - 1) / (v * m + p - 1), BubbleOf({k1F1B, p, v, m}, 1, 1, 1), 1e-12)
            << p << " " << m << " " << v;
      }
    }
  }
  EXPECT_LT(BubbleOf({PipelineSchedule::kZeroBubble, 4, 1, 8}, 1, 1, 1), 0.5 * BubbleOf({k1F1B, 4, 1, 8}, 1, 1, 1));
  EXPECT_NEAR(3.0 / 27, BubbleOf({PipelineSchedule::kZeroBubble, 4, 1, 8}, 1, 1, 1), 1e-12);
}

TEST(PipelineOrder, ActivationsAreBounded) {
  for (const int m : {8, 64}) {
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(4 - rank, PeakAlive(TrainPasses({k1F1B, 4, 1, m}, rank)));
      EXPECT_EQ(4, PeakAlive(TrainPasses({PipelineSchedule::kZeroBubble, 4, 1, m}, rank)));
      EXPECT_EQ(m, PeakAlive(TrainPasses({PipelineSchedule::kGPipe, 4, 1, m}, rank)));
      EXPECT_EQ(11 - 2 * rank, PeakAlive(TrainPasses({k1F1B, 4, 2, m}, rank)));
    }
  }
}

}  // namespace
}  // namespace trireme
