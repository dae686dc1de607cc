// The ZeRO 0-3 programs (arXiv:1910.02054) for any number of micro-batches, at pp 1.
#pragma once
#include "engine/schedule/instruction.h"

namespace trireme {

// Every rank of a dp group gets the same instructions; `rank` is only recorded.
//
// - ZeRO 0, 1: gradients add up in kGradientSum (whole); Reduce of a bucket follows its last Backward, in place:
// all-reduce
//   at 0, reduce-scatter to the own shard at 1. Where the communication type differs: through kStaging slot 1 (whole).
//   ZeRO 2, 3: Reduce of a bucket in each micro-batch: kGradient (whole), [kStaging slot 1 (whole),] reduce-scatter to
//   kStaging slot 0 (shard), added to kGradientSum (shard). One rank (effective stage 0) has no Reduce.
// - StepStats is two instructions: lane compute (own sums), lane dp, group world (all-reduce, norm, clip factor). In
// evaluation
//   only the second, on the evaluation's slots.
// - ZeRO 1, 2: Update and Gather (in place) bucket by bucket, so that each gather runs under the next update and a
// unit's next
//   Forward waits for its own weights only.
// - ZeRO 3: Gather of the next bucket is issued before the units of this one run; the last bucket is kept between
// forward and
//   backward; the embedding has no gather in backward, a tied head its own one of unit 0 (slot 2) unless both are in
//   one bucket.
// - Recompute::kFull: a block's Forward writes and frees kSaved slot 1; its Recompute, just before its Backward, writes
// slot 0 and
//   no output. In evaluation blocks write and free slot 1 too, so that a unit needs no scratch for it.
// - The first Load reads StepState: the previous Program's arena is in use until its StepStats, and everything follows
// a Load.
Program MakeZeroProgram(const Plan& plan, ProgramKind kind, int rank);

// What one buffer of this plan takes, in bytes (transient and persistent; kSaved: the part in the arena).
int64_t BufferBytes(const Plan& plan, const BufferKey& key);
// kSaved: the part that LibTorch returns; 0 for all others.
int64_t PoolBytes(const Plan& plan, const BufferKey& key);

// StepState, rounded up (engine/kernels/step_state.h says what is in it; it is above the LibTorch line).
constexpr int64_t kStepStateBytes = 256;

}  // namespace trireme
