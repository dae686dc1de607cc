#include "engine/calibrate/stopwatch.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/backends.h"

namespace trireme::calibrate {
namespace {

constexpr int64_t kMostSamples = 200, kMostRepetitions = 2000;

}  // namespace

RankWorld Alone(const RankWorld& world) {
  RankWorld alone;
  alone.device = world.device;
  alone.make_group = [cuda = world.device.is_cuda()](const std::string& name, const std::vector<int>& ranks) {
    return cuda ? MakeNcclCommunicator(nullptr, ranks, 0, name) : MakeGlooCommunicator(nullptr, ranks, 0, name);
  };
  alone.world = alone.make_group("alone", {0});
  return alone;
}

double Stopwatch::Seconds(const std::function<void()>& work, int64_t repetitions) const {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repetitions; ++i) work();
  Synchronise(world_.device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Stopwatch::Mean(double mine) const { return SumOver(*world_.world, world_.device, mine) / world_.world->size(); }

Timing Stopwatch::Time(const std::function<void()>& work) const {
  Seconds(work, 1);
  world_.world->Barrier();
  const double once = std::max(1e-7, Mean(Seconds(work, 2) / 2));
  const auto repetitions =
      std::clamp<int64_t>(static_cast<int64_t>(std::ceil(effort_.sample_seconds / once)), 1, kMostRepetitions);
  const auto samples = std::llround(effort_.seconds / (once * static_cast<double>(repetitions)));
  return TimeSamples(work, repetitions, std::clamp<int64_t>(samples, effort_.least_samples, kMostSamples));
}

Timing Stopwatch::TimeSamples(const std::function<void()>& work, int64_t repetitions, int64_t samples) const {
  std::vector<double> seconds;
  world_.world->Barrier();
  for (int64_t sample = 0; sample < samples; ++sample) {
    seconds.push_back(Seconds(work, repetitions) / static_cast<double>(repetitions));
  }
  return Summary(std::move(seconds));
}

Timing Stopwatch::Summary(std::vector<double> seconds) const {
  std::ranges::sort(seconds);
  const size_t count = seconds.size();
  const double median = seconds[count / 2];
  const double spread = (seconds[count * 3 / 4] - seconds[count / 4]) / median;
  return {1 / Mean(1 / median), Mean(spread)};
}

}  // namespace trireme::calibrate
