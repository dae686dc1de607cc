// StepState: the step's scalars in one device array of doubles, so that no step waits for the host. Slots by name; and
// what StepStats is told.
#pragma once

namespace trireme {

enum StepStateSlot : int {
  // The first four are summed over the world by StepStats.
  kLossSum,       // of the step's tokens on this rank; after StepStats of all ranks
  kTokens,        // real count
  kSumOfSquares,  // of the reduced gradients, before clipping, without the factor nominal / real tokens
  kNonFinite,     // > 0: some gradient or the loss is not finite
  // Summed over the world by evaluation programs.
  kEvalLossSum,
  kEvalTokens,
  // Made by StepStats from the above.
  kLoss,          // mean over all tokens of the step
  kGradientNorm,  // before clipping
  kUpdateFactor,  // what Update multiplies gradients by: clipping, 1 / loss scale, nominal / real tokens
  kSkip,          // 1: Update does nothing
  // Kept across steps.
  kLossScale,       // of the next forward: the head multiplies its gradient by it
  kGrowthTracker,   // steps without overflow since the last overflow or growth
  kHysteresis,      // the overflow that lowers the scale, counted down to 1
  kScaleExhausted,  // 1: an overflow found the scale at its floor, which ends the run
  kAppliedSteps,    // updates done: index into the table of learning rates
  kSkippedSteps,
  kStepTokens,  // kTokens of the finished step, kept for the log
  // > 0: a step was skipped, and the host wants to look at it before anything changes (StepStatsOptions::holds_skips).
  // The host clears it; until then every step is void.
  kHeld,
  kStepStateSize,
};

// How kLossScale changes: DeepSpeed's DynamicLossScaler, whose keys stand in "fp16". Not dynamic: it never changes.
struct LossScaling {
  bool dynamic = false;
  double window = 1000;   // loss_scale_window
  double hysteresis = 2;  // the first of so many overflows that lowers the scale; refilled when the scale grows
  bool consecutive_hysteresis = false;  // refilled by each step without overflow
  double floor = 1;                     // min_loss_scale
  bool ends_at_floor = true;  // an overflow at the floor sets kScaleExhausted (ZeRO 1 to 3); false: the scale stays
  // On the step on which the scale doubles DeepSpeed divides the gradients by the new scale; false: by theirs.
  bool growth_quirk = false;
};

struct StepStatsOptions {
  double nominal_tokens = 1;    // of the step over all ranks; gradients were scaled by kLossScale / nominal_tokens
  double max_norm = 0;          // gradient_clipping; 0: off
  bool skip_non_finite = true;  // false: the update is made with what there is (fp32 in DeepSpeed)
  // A skip that no smaller loss scale can cure sets kHeld: any where the scale is not dynamic, and else where the loss
  // itself is not finite or the scale is at its floor. A step that finds kHeld set changes nothing but its own sums, as
  // if it had not been made: the host, which runs ahead, makes it once more.
  bool holds_skips = false;
  LossScaling loss_scaling = {};
};

}  // namespace trireme
