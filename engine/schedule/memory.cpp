#include <algorithm>

#include "engine/schedule/buffers.h"
#include "engine/schedule/compile.h"
#include "engine/schedule/make_program.h"
#include "engine/schedule/verify.h"

namespace trireme {
namespace {

MemoryAccount AccountOf(const Plan& plan, const CompiledProgram& program) {
  MemoryAccount memory;
  const int64_t master_size = SizeOf(plan.dtypes.master);
  for (int unit = 0; unit < plan.num_units(); ++unit) {
    const auto bytes = [&](BufferKind kind) { return BufferBytes(plan, {kind, static_cast<int16_t>(unit), 0, -1, 0}); };
    memory.weights += bytes(BufferKind::kWeights);
    memory.gradients += bytes(BufferKind::kGradientSum);
    const int64_t own = plan.OwnElements(unit) * master_size;
    memory.moments += own * plan.moments_per_element;
    memory.master_weights += plan.separate_master ? own : 0;
  }
  memory.arena = program.arena_bytes;
  memory.workspace = WorkspaceBytes(plan);
  memory.pool = program.peak_pool_bytes;
  return memory;
}

// Bytes that a rank sends in ring algorithms: (n - 1) / n of the whole for a gather or a reduce-scatter, twice that for
// an all-reduce.
int64_t SentBytes(const Plan& plan, const Instruction& instruction) {
  const bool gather = instruction.op == Op::kGather;
  const int64_t size = SizeOf(gather ? plan.dtypes.compute : plan.dtypes.communicate);
  const int64_t times = !gather && plan.effective_zero_stage == 0 ? 2 : 1;
  int64_t elements = 0;
  for (int unit = instruction.units.first; unit <= instruction.units.last; ++unit) {
    elements += plan.units[static_cast<size_t>(unit)].padded_elements;
  }
  return elements / plan.topology.dp_size * (plan.topology.dp_size - 1) * size * times;
}

}  // namespace

void AccountMemory(Plan& plan, const CompiledProgram& program) {
  plan.memory = AccountOf(plan, program);
  TrafficAccount per_step, per_micro_batch;
  int64_t micro_batches = 1;
  for (const CompiledInstruction& compiled : program.instructions) {
    const Instruction& instruction = compiled.instruction;
    micro_batches = std::max<int64_t>(micro_batches, instruction.micro_batch + 1);
    if (instruction.op != Op::kGather && instruction.op != Op::kReduce) continue;
    TrafficAccount& traffic = instruction.micro_batch < 0 ? per_step : per_micro_batch;
    (instruction.op == Op::kGather ? traffic.gather : traffic.reduce) += SentBytes(plan, instruction);
  }
  // Every micro-batch sends the same.
  const int64_t m = plan.batch.num_micro_batches;
  plan.traffic.gather = per_step.gather + per_micro_batch.gather / micro_batches * m;
  plan.traffic.reduce = per_step.reduce + per_micro_batch.reduce / micro_batches * m;
}

void AccountMemory(Plan& plan) {
  const int64_t num_micro_batches = plan.batch.num_micro_batches;
  plan.batch.num_micro_batches = std::min(num_micro_batches, kFoldedMicroBatches);
  const CompiledProgram folded = Compile(MakeProgram(plan, ProgramKind::kTrain, 0), OptionsOf(plan));
  plan.batch.num_micro_batches = num_micro_batches;
  AccountMemory(plan, folded);
}

}  // namespace trireme
