// What the builders of a Program share: keys, instructions, and the section of a step that follows the passes. Private
// to this room.
#pragma once
#include <vector>

#include "engine/schedule/instruction.h"

namespace trireme::program_parts {

using Keys = std::vector<BufferKey>;

inline BufferKey Key(BufferKind kind, int unit, int micro_batch = -1, int slot = 0) {
  return {kind, static_cast<int16_t>(unit), 0, micro_batch, static_cast<int16_t>(slot)};
}
const BufferKey kState = Key(BufferKind::kStepState, -1), kHostState = Key(BufferKind::kHostState, -1);

// Those of the plan's buckets that lie in a stage, in forward order.
std::vector<UnitRange> BucketsIn(const Plan& plan, const UnitRange& stage);

Instruction& Emit(Program& program, Op op, UnitRange units, int micro_batch, Lane lane, Group group = Group::kNone);

// The bucket's sums are complete: those that are updated on the host go there, under the rest of the backward pass.
void GradientsDown(const Plan& plan, const UnitRange& bucket, Program& program);

// StepStats, then the updates of the buckets that the pipeline rank holds, in forward order.
void AppendTrainStep(const Plan& plan, int pp_rank, Program& program);
void AppendEvalStep(const Plan& plan, Program& program);

}  // namespace trireme::program_parts
