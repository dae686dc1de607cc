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

// What clipping multiplies gradients by: 1 where it does not act, or nothing is updated. `max_norm` <= 0: off.
double ClipFactor(double grad_norm, double max_norm);

struct SkipCounts {
  int64_t calibrating = 0;  // before the first update of this run: a dynamic scale that starts high comes down
  int64_t later = 0;
};

class StepWatch {
 public:
  // `speaks`: all ranks see the same results, one logs them. `diagnose`: where a held step (StepResult), which had this
  // loss scale, went wrong; it stands in the line or the error that tells the skip.
  using Diagnose = std::function<std::string(double loss_scale)>;
  StepWatch(const Config& config, bool speaks, Diagnose diagnose = {});

  // Throws Error{kCheckFailed}: TRN005 for a step that is not finite in fp32 or fp64, TRN007 for an overflow with the
  // dynamic loss scale at its floor, TRN006 after trireme.max_skipped_steps (or `hysteresis`, if that is more) in a
  // row that were skipped without lowering a loss scale.
  void Check(int64_t step, const StepResult& result);
  void set_loss_scale(double scale) { scales_ = {scale}; }  // of the next step, after a load
  double loss_scale() const { return scales_.back(); }
  const SkipCounts& skips() const { return skips_; }
  int64_t skips_in_a_row() const { return in_a_row_; }
  void Restart() { in_a_row_ = without_cure_ = 0; }   // a checkpoint was loaded
  int64_t clipped_steps() const { return clipped_; }  // updates whose gradients were made smaller by clipping

 private:
  void TellSkip(int64_t step, const StepResult& result, const std::string& found);

  enum class Kind { kWide, kBf16, kStaticScale, kDynamicScale };
  Kind kind_;
  bool speaks_;
  Diagnose diagnose_;
  int64_t most_skips_;
  double floor_ = 0;
  int64_t in_a_row_ = 0, without_cure_ = 0;
  bool applied_ = false;
  double max_norm_;
  int64_t clipped_ = 0;
  SkipCounts skips_;
  std::deque<double> scales_;  // the last ones, that of the next step at the end
};

}  // namespace trireme
