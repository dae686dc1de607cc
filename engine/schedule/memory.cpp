#include <algorithm>

#include "engine/plan/families/rope.h"
#include "engine/schedule/buffers.h"
#include "engine/schedule/compile.h"
#include "engine/schedule/make_program.h"
#include "engine/schedule/memory_series.h"
#include "engine/schedule/verify.h"

namespace trireme {
namespace {

// A checkpoint is written in pieces of this size, which stand twice (checkpoint/writer.h).
constexpr int64_t kSavePieceBytes = int64_t{16} << 20;

int64_t HostBoundaries(const Plan& plan, const CompiledProgram& program) {
  std::vector<int64_t> change(program.instructions.size() + 1);
  for (const LiveBuffer& buffer : LiveBuffersOf(plan, program)) {
    if (buffer.key.kind != BufferKind::kHostBoundary) continue;
    change[static_cast<size_t>(buffer.begin)] += buffer.bytes;
    change[static_cast<size_t>(buffer.end) + 1] -= buffer.bytes;
  }
  int64_t live = 0, most = 0;
  for (const int64_t bytes : change) most = std::max(most, live += bytes);
  return std::min(most, program.host_arena_bytes);
}

// NCCL's, on a rank of this pipeline rank.
int64_t CommunicatorBytes(const Plan& plan) {
  const Topology& t = plan.topology;
  int64_t groups = t.world_size() > 1;
  groups += t.dp_size > 1 && t.dp_size < t.world_size();
  groups += t.tp_size > 1;
  groups += t.pp_size > 1;
  groups += plan.tied_across_stages();
  return groups * kCommunicatorBytes;
}

// What a rank holds for a while when a run begins or saves (engine/trainer: checkpointing, export).
void AccountCopies(const Plan& plan, int pp_rank, MemoryAccount& memory) {
  const int64_t compute = SizeOf(plan.dtypes.compute), master = SizeOf(plan.dtypes.master);
  int64_t unit_copy = 0, slice = 0, tensor = 0, gathered = 0;
  for (const int u : plan.UnitsOf(pp_rank)) {
    const UnitLayout& unit = plan.units[static_cast<size_t>(u)];
    const int64_t own = plan.OwnElements(u);
    // Between device and host a unit's weights or masters stand twice; of what is on a disk one state is read whole.
    const bool moves = plan.HasMaster(u) && plan.OptimizerOnHost(u) != plan.weights_on_host;
    if (moves || (plan.optimizer_on_disk && plan.OptimizerOnHost(u))) unit_copy = std::max(unit_copy, own * master);
    for (const Segment& segment : unit.segments) {
      slice = std::max(slice, std::min(own, segment.count));
      tensor = std::max(tensor, segment.count * segment.parameter.tp_size);
    }
    const bool split = plan.topology.tp_size * plan.topology.pp_size > 1;
    const int64_t parts = split ? plan.topology.tp_size : plan.effective_zero_stage == 3;
    gathered = std::max(gathered, parts * unit.padded_elements * compute);
  }
  memory.saving = std::max<int64_t>(0, gathered - memory.arena) + tensor * compute;
  memory.host.initialising = std::max(unit_copy, slice * (compute + master));
  memory.host.saving = std::max(unit_copy, tensor * compute) + 2 * kSavePieceBytes;
}

MemoryAccount AccountOf(const Plan& plan, const CompiledProgram& program) {
  MemoryAccount memory;
  const int64_t master_size = SizeOf(plan.dtypes.master);
  const int pp_rank = plan.topology.CoordinateOf(program.rank).pp_rank;
  for (const int unit : plan.UnitsOf(pp_rank)) {
    const auto bytes = [&](BufferKind kind) { return BufferBytes(plan, {kind, static_cast<int16_t>(unit), 0, -1, 0}); };
    (plan.weights_on_disk   ? memory.host.disk
     : plan.weights_on_host ? memory.host.weights
                            : memory.weights) += bytes(BufferKind::kWeights);
    memory.gradients += bytes(BufferKind::kGradientSum);
    const int64_t own = plan.OwnElements(unit) * master_size, masters = plan.HasMaster(unit) ? own : 0;
    if (plan.OptimizerOnHost(unit)) {
      memory.host.gradients += bytes(BufferKind::kHostGradient);
      const int64_t moments = own * plan.moments_per_element;
      memory.host.moments += plan.optimizer_on_disk ? 0 : moments;
      memory.host.master_weights += plan.optimizer_on_disk ? 0 : masters;
      memory.host.disk += plan.optimizer_on_disk ? moments + masters : 0;
    } else {
      memory.moments += own * plan.moments_per_element + bytes(BufferKind::kUpdateNorms);
      memory.master_weights += masters;
    }
  }
  memory.arena = program.arena_bytes;
  memory.of_arena = ArenaAtPeak(program);
  memory.host.arena = program.host_arena_bytes;
  if (plan.boundaries_on_host) memory.host.boundaries = HostBoundaries(plan, program);
  memory.workspace = WorkspaceBytes(plan, pp_rank);
  memory.logits = std::min(memory.workspace, LogitsBytes(plan, pp_rank));
  memory.communicator = CommunicatorBytes(plan);
  memory.context = kContextBytes;
  AccountCopies(plan, pp_rank, memory);
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
      // Within a segment the next layer reads the output.
      return SentBytes(plan, unit.segment.last == instruction.units.first ? of.recompute : of.forward);
    case Op::kTpGather:
      return plan.boundary_tokens() * plan.model.hidden_size * SizeOf(plan.dtypes.compute) / plan.topology.tp_size *
             (plan.topology.tp_size - 1);
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

}  // namespace

int64_t FoldedMicroBatches(const Plan& plan) {
  if (plan.pipeline_schedule == PipelineSchedule::kGPipe && plan.topology.pp_size > 1) {
    return plan.batch.num_micro_batches;
  }
  return std::min<int64_t>(plan.batch.num_micro_batches,
                           std::max<int64_t>(kFoldedMicroBatches, 4 * plan.topology.pp_size));
}

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
