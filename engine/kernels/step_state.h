// StepState: the step's scalars in one device array of doubles, so that no step waits for the host. Slots by name.
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
  kLossScale,
  kGrowthTracker,
  kHysteresis,
  kAppliedSteps,  // updates done: index into the table of learning rates
  kSkippedSteps,
  kStepTokens,  // kTokens of the finished step, kept for the log
  kStepStateSize,
};

}  // namespace trireme
