#include <algorithm>

#include "engine/plan/families/rope.h"
#include "engine/schedule/buffers.h"
#include "engine/schedule/compile.h"
#include "engine/schedule/make_program.h"
#include "engine/schedule/verify.h"

namespace trireme {
namespace {

MemoryAccount AccountOf(const Plan& plan, const CompiledProgram& program) {
  MemoryAccount memory;
  const int64_t master_size = SizeOf(plan.dtypes.master);
  const int pp_rank = plan.topology.CoordinateOf(program.rank).pp_rank;
  for (const int unit : plan.UnitsOf(pp_rank)) {
    const auto bytes = [&](BufferKind kind) { return BufferBytes(plan, {kind, static_cast<int16_t>(unit), 0, -1, 0}); };
    (plan.weights_on_host ? memory.host.weights : memory.weights) += bytes(BufferKind::kWeights);
    memory.gradients += bytes(BufferKind::kGradientSum);
    const int64_t own = plan.OwnElements(unit) * master_size, masters = plan.HasMaster(unit) ? own : 0;
    if (plan.OptimizerOnHost(unit)) {
      memory.host.gradients += bytes(BufferKind::kHostGradient);
      memory.host.moments += own * plan.moments_per_element;
      memory.host.master_weights += masters;
    } else {
      memory.moments += own * plan.moments_per_element + bytes(BufferKind::kUpdateNorms);
      memory.master_weights += masters;
    }
  }
  memory.arena = program.arena_bytes;
  memory.host.arena = program.host_arena_bytes;
  memory.workspace = WorkspaceBytes(plan, pp_rank);
  memory.pool = program.peak_pool_bytes;
  memory.tables = RopeTableBytes(plan.model, plan.dtypes.compute, plan.batch.sequence_length);
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

// Of collectives over tp: the ring's bytes, as above.
int64_t SentBytes(const Plan& plan, const std::vector<CollectiveSpec>& collectives) {
  const int64_t tp = plan.topology.tp_size;
  int64_t bytes = 0;
  for (const CollectiveSpec& collective : collectives) {
    const int64_t times = collective.kind == CollectiveSpec::Kind::kAllReduce ? 2 : 1;
    bytes += collective.bytes_per_token * plan.batch.tokens_per_micro_batch() / tp * (tp - 1) * times;
  }
  return bytes;
}

int64_t TensorParallelBytes(const Plan& plan, const Instruction& instruction) {
  if (plan.topology.tp_size == 1) return 0;
  const UnitLayout& unit = plan.units[static_cast<size_t>(instruction.units.first)];
  const UnitCollectives& of = unit.spec.collectives;
  switch (instruction.op) {
    case Op::kForward:
      return SentBytes(plan, of.forward);
    case Op::kRecompute:
      return SentBytes(plan, of.recompute);
    case Op::kBackward:
      return SentBytes(plan, of.backward_input) + SentBytes(plan, of.backward_weight);
    case Op::kBackwardInput:
      return SentBytes(plan, of.backward_input);
    case Op::kBackwardWeight:
      return SentBytes(plan, of.backward_weight);
    default:
      return 0;
  }
}

// Gradients of what every tp rank has whole.
int64_t TpReduceBytes(const Plan& plan, const UnitRange& units) {
  int64_t elements = 0;
  for (int u = units.first; u <= units.last; ++u) {
    for (const Segment& segment : plan.units[static_cast<size_t>(u)].segments) {
      if (!segment.parameter.split()) elements += segment.count;
    }
  }
  const int64_t tp = plan.topology.tp_size;
  return elements * SizeOf(plan.dtypes.accumulate) / tp * (tp - 1) * 2;
}

int64_t BytesOf(const std::vector<BufferUse>& uses) {
  int64_t bytes = 0;
  for (const BufferUse& use : uses) bytes += use.bytes;
  return bytes;
}

// Bytes sent in one step, scaled from the micro-batches that the program has to the plan's.
TrafficAccount TrafficOf(const Plan& plan, const CompiledProgram& program) {
  TrafficAccount per_step, per_micro_batch;
  int64_t micro_batches = 1;
  for (const CompiledInstruction& compiled : program.instructions) {
    const Instruction& instruction = compiled.instruction;
    micro_batches = std::max<int64_t>(micro_batches, instruction.micro_batch + 1);
    TrafficAccount& traffic = instruction.micro_batch < 0 ? per_step : per_micro_batch;
    if (instruction.op == Op::kSend) traffic.transfer += compiled.reads.front().bytes;
    if (instruction.op == Op::kGather) traffic.gather += SentBytes(plan, instruction);
    if (instruction.op == Op::kReduce) traffic.reduce += SentBytes(plan, instruction);
    if (instruction.op == Op::kTpReduce) traffic.tensor_parallel += TpReduceBytes(plan, instruction.units);
    traffic.tensor_parallel += TensorParallelBytes(plan, instruction);
    if (instruction.op == Op::kCopyDown && !CopiesState(instruction)) traffic.down += BytesOf(compiled.writes);
    if (instruction.op == Op::kCopyUp) traffic.up += BytesOf(compiled.writes);
    if (instruction.op == Op::kReduceNorms) {
      const bool tp = instruction.group == Group::kTp;
      const int64_t ranks = tp ? plan.topology.tp_size : plan.topology.dp_size;
      (tp ? traffic.tensor_parallel : traffic.reduce) += 2 * BytesOf(compiled.writes) * (ranks - 1) / ranks;
    }
  }
  // Every micro-batch sends the same.
  const auto both = [&](int64_t TrafficAccount::*kind) {
    return per_step.*kind + per_micro_batch.*kind / micro_batches * plan.batch.num_micro_batches;
  };
  return {both(&TrafficAccount::gather),          both(&TrafficAccount::reduce), both(&TrafficAccount::transfer),
          both(&TrafficAccount::tensor_parallel), both(&TrafficAccount::down),   both(&TrafficAccount::up)};
}

// From here on the arena repeats: a pipeline must have filled up, and its virtual stages need whole groups.
int64_t FoldedMicroBatches(const Plan& plan) {
  if (plan.pipeline_schedule == PipelineSchedule::kGPipe && plan.topology.pp_size > 1) {
    return plan.batch.num_micro_batches;
  }
  return std::min<int64_t>(plan.batch.num_micro_batches,
                           std::max<int64_t>(kFoldedMicroBatches, 4 * plan.topology.pp_size));
}

}  // namespace

void AccountMemory(Plan& plan, const std::vector<CompiledProgram>& pp_ranks) {
  plan.memory_of_pp_rank.clear();
  plan.traffic = {};
  for (const CompiledProgram& program : pp_ranks) {
    plan.memory_of_pp_rank.push_back(AccountOf(plan, program));
    const TrafficAccount traffic = TrafficOf(plan, program);
    plan.traffic.gather = std::max(plan.traffic.gather, traffic.gather);
    plan.traffic.reduce = std::max(plan.traffic.reduce, traffic.reduce);
    plan.traffic.transfer = std::max(plan.traffic.transfer, traffic.transfer);
    plan.traffic.tensor_parallel = std::max(plan.traffic.tensor_parallel, traffic.tensor_parallel);
    plan.traffic.down = std::max(plan.traffic.down, traffic.down);
    plan.traffic.up = std::max(plan.traffic.up, traffic.up);
  }
  plan.memory = *std::ranges::max_element(plan.memory_of_pp_rank, {}, &MemoryAccount::total);
}

void AccountMemory(Plan& plan) {
  Plan folded = plan;
  folded.batch.num_micro_batches = FoldedMicroBatches(plan);
  std::vector<CompiledProgram> programs;
  for (int pp_rank = 0; pp_rank < plan.topology.pp_size; ++pp_rank) {
    const int rank = plan.topology.RankOf({pp_rank, 0, 0});
    programs.push_back(Compile(MakeProgram(folded, ProgramKind::kTrain, rank), OptionsOf(folded)));
  }
  AccountMemory(plan, programs);
}

}  // namespace trireme
