// What a calibration makes of its samples.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "engine/calibrate/links.h"
#include "engine/calibrate/stopwatch.h"
#include "engine/comm/in_process.h"

namespace trireme::calibrate {
namespace {

std::vector<Point> PointsOf(double latency, double rate) {
  std::vector<Point> points;
  for (const double bytes : {4e3, 64e3, 1e6, 8e6}) points.push_back({bytes, latency + bytes / rate});
  return points;
}

TEST(FitLink, FindsLatencyAndRate) {
  const LinkRate rate = FitLink(PointsOf(50e-6, 2e9));
  EXPECT_NEAR(rate.latency_seconds, 50e-6, 1e-10);
  EXPECT_NEAR(rate.bytes_per_second, 2e9, 1);
}

TEST(FitLink, SmallMessagesCountAsMuchAsLargeOnes) {
  std::vector<Point> points = PointsOf(50e-6, 2e9);
  points.back().seconds *= 1.1;  // half a millisecond, ten times the latency
  EXPECT_NEAR(FitLink(points).latency_seconds, 50e-6, 10e-6);
}

TEST(FitLink, NeitherLatencyNorRateIsNegative) {
  const LinkRate fast_start = FitLink({{1e6, 1e-4}, {2e6, 4e-4}});
  EXPECT_EQ(fast_start.latency_seconds, 0);
  EXPECT_GT(fast_start.bytes_per_second, 0);
  const LinkRate no_trend = FitLink({{1e6, 4e-4}, {2e6, 1e-4}});
  EXPECT_EQ(no_trend.latency_seconds, 0);
  EXPECT_NEAR(no_trend.bytes_per_second, 2e10, 1);
}

TEST(Stopwatch, RanksBeginTogetherAndAgree) {
  const std::shared_ptr<InProcessWorld> comms = MakeInProcessWorld(2, std::chrono::seconds(30));
  std::vector<Timing> timings(2);
  std::vector<int> calls(2);
  const auto rank_main = [&](int rank) {
    RankWorld world;
    world.rank = rank;
    world.world_size = 2;
    world.world = comms->MakeCommunicator({0, 1}, rank, "world");
    const Stopwatch watch(world, {.seconds = 0.02, .least_samples = 3});
    timings[static_cast<size_t>(rank)] = watch.Time([&] {
      ++calls[static_cast<size_t>(rank)];
      std::this_thread::sleep_for(std::chrono::milliseconds(rank == 0 ? 2 : 6));
    });
  };
  std::thread other(rank_main, 1);
  rank_main(0);
  other.join();
  EXPECT_EQ(calls[0], calls[1]);  // collectives would hang else
  EXPECT_EQ(timings[0].seconds, timings[1].seconds);
  // Together they do 1/2 + 1/6 of it in a millisecond: each as if it took 3.
  EXPECT_GE(timings[0].seconds, 2.9e-3);
  EXPECT_LT(timings[0].seconds, 30e-3);
}

}  // namespace
}  // namespace trireme::calibrate
