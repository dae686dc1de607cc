// How large the buffers of a plan are.
#pragma once
#include "engine/schedule/instruction.h"

namespace trireme {

// What one buffer of this plan takes, in bytes (transient and persistent; kSaved: the part in the arena).
int64_t BufferBytes(const Plan& plan, const BufferKey& key);
// kSaved: the part that LibTorch returns; 0 for all others.
int64_t PoolBytes(const Plan& plan, const BufferKey& key);

// StepState, rounded up (engine/kernels/step_state.h says what is in it; it is above the LibTorch line).
constexpr int64_t kStepStateBytes = 256;

}  // namespace trireme
