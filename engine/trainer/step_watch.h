// What the host makes of each step's result: a word on every skipped step, and the end of a run that no skip will cure.
//   StepWatch watch(config, /*speaks=*/rank == 0);   watch.Check(step, result);
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "engine/execute/executor.h"
#include "engine/kernels/step_state.h"
#include "parsers/config.h"

namespace trireme {

// Of the "fp16" section. The device does the scaling (engine/kernels/step_stats.h).
LossScaling LossScalingOf(const Config& config);
double InitialLossScale(const Config& config);  // 1 unless fp16

struct SkipCounts {
  int64_t calibrating = 0;  // before the first update of this run: a dynamic scale that starts high comes down
  int64_t later = 0;
};

class StepWatch {
 public:
  // `speaks`: all ranks see the same results, one logs them. `diagnose`: what of this rank is not finite, asked before
  // the run ends; "" adds nothing.
  StepWatch(const Config& config, bool speaks, std::function<std::string()> diagnose = {});

  // Throws Error{kCheckFailed}: TRN005 for a step that is not finite in fp32 or fp64, TRN007 for an overflow with the
  // dynamic loss scale at its floor, TRN006 after 50 steps (or `hysteresis`, if that is more) in a row that were
  // skipped without lowering a loss scale.
  void Check(int64_t step, const StepResult& result);
  void set_loss_scale(double scale) { scales_ = {scale}; }  // of the next step, after a load
  double loss_scale() const { return scales_.back(); }
  const SkipCounts& skips() const { return skips_; }

 private:
  [[noreturn]] void Fail(const char* id, std::string what, int64_t step, const std::string& fix) const;
  void TellSkip(int64_t step, const StepResult& result);

  enum class Kind { kWide, kBf16, kStaticScale, kDynamicScale };
  Kind kind_;
  bool speaks_;
  std::function<std::string()> diagnose_;
  int64_t most_skips_;
  double floor_ = 0;
  int64_t in_a_row_ = 0, without_cure_ = 0;
  bool applied_ = false;
  SkipCounts skips_;
  std::deque<double> scales_;  // the last ones, that of the next step at the end
};

}  // namespace trireme
