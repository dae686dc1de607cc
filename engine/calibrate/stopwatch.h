// How long something takes on every rank of a job at once: warm-up, repetitions, median and spread.
//   Stopwatch watch(world, {.seconds = 0.2});
//   Timing timing = watch.Time([&] { kernels::LinearForward(...); });
// All ranks call it with the same work, in the same order. They begin together, and go through the same number of
// repetitions: so work may be a collective, and ranks that share a processor measure each other's company.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/trainer/rank_world.h"

namespace trireme::calibrate {

struct Timing {
  double seconds = 0;  // of one repetition: each rank's median, and of those the harmonic mean
  double spread = 0;   // distance of the quartiles over the median, mean of the ranks
};

struct Effort {
  double seconds = 0.1;       // of measuring, after the warm-up
  int64_t least_samples = 5;  // whatever that takes
  // Of one sample at least: the mean of as many repetitions as that takes. Long against the clock and the wake-up of a
  // device.
  double sample_seconds = 2e-3;
};

// The same rank in a job of its own.
RankWorld Alone(const RankWorld& world);

class Stopwatch {
 public:
  Stopwatch(RankWorld& world, Effort effort) : world_(world), effort_(effort) {}

  // So many repetitions to a sample that it is long against the clock.
  Timing Time(const std::function<void()>& work) const;
  // Without a warm-up of its own.
  Timing TimeSamples(const std::function<void()>& work, int64_t repetitions, int64_t samples) const;

  // Of samples that each rank has taken itself.
  Timing Summary(std::vector<double> seconds) const;

  RankWorld& world() const { return world_; }

 private:
  double Mean(double mine) const;  // over the ranks
  double Seconds(const std::function<void()>& work, int64_t repetitions) const;

  RankWorld& world_;
  Effort effort_;
};

}  // namespace trireme::calibrate
