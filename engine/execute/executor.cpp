#include "engine/execute/executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <exception>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/comm/host_staged.h"
#include "engine/execute/bound_program.h"
#include "engine/kernels/kernels.h"
#include "engine/zero/rank_memory.h"

namespace trireme {
namespace {

constexpr size_t kSlots = 4;

// Of a persistent buffer; unit -1 is the rank's.
size_t UseIndex(const BufferKey& key, int num_units) {
  return static_cast<size_t>(key.kind) * static_cast<size_t>(num_units + 1) + static_cast<size_t>(key.unit + 1);
}

void JoinInto(LaneWaits& waits, const LaneWaits& others) {
  for (size_t lane = 0; lane < waits.size(); ++lane) waits[lane] = std::max(waits[lane], others[lane]);
}

}  // namespace

Executor::Executor(const ExecutorParts& parts, std::vector<std::unique_ptr<Unit>> units, CompiledProgram train,
                   CompiledProgram eval)
    : parts_(parts), units_(std::move(units)) {
  const Plan& plan = *parts_.plan;
  const at::Device device = parts_.state->device();
  if (parts_.tp != nullptr) tensor_parallel_ = MakeTensorLane(*parts_.tp, device, tensor_trace_);
  RankMemory& memory = parts_.state->memory();
  arena_ =
      memory.OnDevice(MemoryClass::kActivations, std::max<int64_t>(1, std::max(train.arena_bytes, eval.arena_bytes)),
                      at::kByte, /*zeros=*/false);
  for (const UnitLayout& unit : plan.units) {
    gaps_.emplace_back();
    for (size_t s = 0; s < unit.segments.size(); ++s) {
      const int64_t end = unit.segments[s].begin + unit.segments[s].count;
      const int64_t next = s + 1 < unit.segments.size() ? unit.segments[s + 1].begin : unit.padded_elements;
      if (next > end) gaps_.back().emplace_back(end, next - end);
    }
  }
  workspace_ = memory.OnDevice(MemoryClass::kWorkspace,
                               std::max<int64_t>(1, WorkspaceBytes(plan, parts_.state->pp_rank())), at::kByte,
                               /*zeros=*/false);
  of_copies_ = at::zeros_like(parts_.state->step_state());
  const int64_t host_bytes = std::max(train.host_arena_bytes, eval.host_arena_bytes);
  if (host_bytes > 0) host_arena_ = memory.OnHost(MemoryClass::kGathered, host_bytes, at::kByte, plan.pin_memory);
  last_use_.resize((static_cast<size_t>(BufferKind::kStepState) + 1) * (plan.units.size() + 1));
  train_ = Bind(std::move(train));
  eval_ = Bind(std::move(eval));
  for (size_t slot = 0; slot < kSlots; ++slot) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->host_state =
        at::empty({kStepStateSize}, at::TensorOptions().dtype(at::kDouble).pinned_memory(device.is_cuda()));
  }
  const auto run = [this](const LaneWork& work, CommStream stream) { RunInstruction(work, stream); };
  lanes_ = device.is_cuda() ? Lanes::MakeCuda(device.index(), run) : Lanes::MakeCpu(run, [this] { Abort(); });
}

// Other ranks count on what was issued: it is finished, unless an error ends this rank, which then must not leave them
// waiting.
Executor::~Executor() {
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    Abort();
    return;
  }
  try {
    lanes_->Drain();
  } catch (const std::exception& error) {
    log::Error("{}", error.what());
  }
}

int64_t Executor::arena_bytes() const { return arena_.numel(); }
int64_t Executor::workspace_bytes() const { return workspace_.numel(); }
int64_t Executor::host_arena_bytes() const { return host_arena_.defined() ? host_arena_.numel() : 0; }

int64_t Executor::Run(ProgramKind kind, StepInputs inputs) {
  BoundProgram& program = kind == ProgramKind::kTrain ? *train_ : *eval_;
  const int64_t run = StartRun(program, std::move(inputs));
  Issue(program, program.instructions.size());
  return run;
}

int64_t Executor::StartRun(BoundProgram& program, StepInputs inputs) {
  const int64_t run = next_run_++;
  if (run >= 2)
    lanes_->Wait(slots_[static_cast<size_t>(run - 2) % kSlots]->done);  // bounds how far the host runs ahead
  Slot& slot = *slots_[static_cast<size_t>(run) % kSlots];
  slot.context.inputs = std::move(inputs);
  slot.context.slot = &slot;
  slot.number = run;
  for (Communicator* group : Groups()) WaitOnHost(*group, !program.has_run);  // the first run loads kernels
  program.has_run = true;
  program.next = 0;
  program.context = &slot.context;
  TRIREME_CHECK(slot.context.inputs.shapes.size() ==
                    (parts_.plan->batch.is_dynamic() ? static_cast<size_t>(parts_.plan->batch.num_micro_batches) : 0),
                "a shape a micro-batch, where lengths differ");
  return run;
}

LaneWaits Executor::WaitsOf(const BoundProgram& program, const CompiledInstruction& compiled) const {
  LaneWaits waits{};
  for (const int32_t id : compiled.waits) {
    const Ticket& ticket = program.tickets[static_cast<size_t>(id)];
    waits[static_cast<size_t>(ticket.lane)] = std::max(waits[static_cast<size_t>(ticket.lane)], ticket.number);
  }
  for (const CompiledInstruction::Carried& carried : compiled.carried) {
    const LastUse& last = last_use_[UseIndex(carried.key, parts_.state->num_units())];
    JoinInto(waits, carried.writes ? last.any : last.write);
  }
  const size_t own = static_cast<size_t>(compiled.instruction.lane);
  waits[own] = 0;
  return waits;
}

void Executor::NoteUses(const CompiledInstruction& compiled, Ticket ticket) {
  const auto note = [&](const std::vector<BufferUse>& uses, bool write) {
    for (const BufferUse& use : uses) {
      if (!IsPersistent(use.key.kind)) continue;
      LastUse& last = last_use_[UseIndex(use.key, parts_.state->num_units())];
      last.any[static_cast<size_t>(ticket.lane)] = ticket.number;
      if (write) last.write[static_cast<size_t>(ticket.lane)] = ticket.number;
    }
  };
  note(compiled.reads, false);
  note(compiled.writes, true);
  note(compiled.adds, true);
}

void Executor::Issue(BoundProgram& program, size_t end) {
  Slot& slot = *program.context->slot;
  while (program.next < end) {
    Bound& bound = *program.instructions[program.next];
    const CompiledInstruction& compiled = *bound.compiled;
    // Transfers of one post are one piece of work.
    const size_t last = program.next + std::max<size_t>(1, bound.transfers.size());
    LaneWaits waits{};
    for (size_t i = program.next; i < last; ++i) JoinInto(waits, WaitsOf(program, *program.instructions[i]->compiled));
    const Ticket ticket = lanes_->Issue(compiled.instruction.lane, {&compiled, program.context, &bound}, waits);
    for (; program.next < last; ++program.next) {
      program.tickets[program.next] = ticket;
      NoteUses(*program.instructions[program.next]->compiled, ticket);
    }
    if (CopiesState(compiled.instruction)) slot.done = ticket;
  }
  CheckHealth();
}

StepResult Executor::Result(int64_t run) {
  Slot& slot = *slots_[static_cast<size_t>(run) % kSlots];
  TRIREME_CHECK(slot.number == run, "the result of run " + std::to_string(run) + " was overwritten");
  lanes_->Wait(slot.done);
  CheckHealth();
  const double* s = slot.host_state.const_data_ptr<double>();
  StepResult result;
  result.completed = slot.completed;
  result.loss = s[kLoss];
  result.grad_norm = s[kGradientNorm];
  result.tokens = s[kStepTokens];
  result.skipped = s[kSkip] != 0;
  result.held = s[kHeld] != 0;
  result.applied_steps = static_cast<int64_t>(s[kAppliedSteps]);
  result.skipped_steps = static_cast<int64_t>(s[kSkippedSteps]);
  result.loss_scale = s[kLossScale];
  result.hysteresis = s[kHysteresis];
  result.rate_factor = s[kRateFactor];
  result.scale_exhausted = s[kScaleExhausted] != 0;
  result.eval_loss_sum = s[kEvalLossSum];
  result.eval_tokens = s[kEvalTokens];
  return result;
}

void Executor::Drain() {
  lanes_->Drain();
  CheckHealth();
}

std::vector<Communicator*> Executor::Groups() const {
  std::vector<Communicator*> groups = {parts_.world};
  for (Communicator* group : {parts_.dp, parts_.pp, parts_.tp, parts_.tie}) {
    if (group != nullptr && group != parts_.world) groups.push_back(group);
  }
  return groups;
}

void Executor::Abort() {
  for (Communicator* group : Groups()) group->Abort();
}

// On a GPU a collective that was aborted leaves its stream running, with garbage behind it: only this tells.
void Executor::CheckHealth() {
  for (Communicator* group : Groups()) {
    if (group->size() > 1) group->CheckHealth();
  }
}

double Executor::ForwardPiece(StepInputs inputs, int64_t micro_batch) {
  TRIREME_CHECK(parts_.plan->topology.pp_size == 1, "forward, backward and step by hand need one pipeline stage");
  BoundProgram& program = *train_;
  if (micro_batch == 0) {
    StartRun(program, std::move(inputs));
    loss_before_ = tokens_before_ = 0;
  } else {
    lanes_->Drain();  // the context's source of tokens is replaced: no lane may be using it
    program.context->inputs = std::move(inputs);
  }
  Issue(program, program.forward_end[static_cast<size_t>(micro_batch)]);
  lanes_->Drain();
  const at::Tensor state = parts_.state->step_state().cpu();
  const double loss = state.const_data_ptr<double>()[kLossSum], tokens = state.const_data_ptr<double>()[kTokens];
  const double mean = (loss - loss_before_) / std::max(1.0, tokens - tokens_before_);
  loss_before_ = loss;
  tokens_before_ = tokens;
  return mean;
}

void Executor::BackwardPiece(int64_t micro_batch) {
  Issue(*train_, train_->backward_end[static_cast<size_t>(micro_batch)]);
}

int64_t Executor::StepPiece() {
  Issue(*train_, train_->instructions.size());
  return next_run_ - 1;
}

void Executor::RunInstruction(const LaneWork& work, CommStream stream) {
  const at::NoGradGuard no_grad;
  c10::OptionalDeviceGuard device;
  if (work.instruction->instruction.lane != Lane::kCpu) device.reset_device(parts_.state->device());
  Bound& bound = *static_cast<Bound*>(work.bound);
  StepContext& step = *work.step;
  const Instruction& instruction = work.instruction->instruction;
  if (parts_.before_instruction) parts_.before_instruction(instruction, step.inputs.step);
  Tracer* tracer = parts_.tracer.get();
  const size_t token = tracer != nullptr ? tracer->Begin(instruction, step.inputs.step, stream) : 0;
  if (instruction.lane == Lane::kCompute) tensor_trace_ = {tracer, &instruction, step.inputs.step};
  switch (instruction.op) {
    case Op::kLoad:
      RunLoad(bound, step, stream);
      break;
    case Op::kForward:
    case Op::kRecompute:
    case Op::kBackward:
    case Op::kBackwardInput:
    case Op::kBackwardWeight:
      RunUnit(bound, step);
      break;
    case Op::kSend:
    case Op::kRecv:
      RunTransfers(bound, step, stream);
      break;
    case Op::kTpSplit:
      kernels::CastCopy(bound.kept_whole, bound.kept_part);
      break;
    case Op::kTpGather:
      tensor_parallel_->AllGather(bound.kept_part, bound.kept_whole);
      tensor_parallel_->Wait();
      break;
    case Op::kTpReduce:
      RunTpReduce(bound);
      break;
    case Op::kTieReduce:
      parts_.tie->AllReduce(parts_.state->own_gradient(0), ReduceOp::kSum, stream);
      break;
    case Op::kGather:
      RunGather(bound, stream);
      break;
    case Op::kReduce:
      RunReduce(bound, stream);
      break;
    case Op::kRelease:
      break;
    case Op::kStepStats:
      RunStepStats(bound, step, stream);
      break;
    case Op::kUpdateNorms:
      for (int u = instruction.units.first; u <= instruction.units.last; ++u) {
        parts_.updater->UpdateNorms(*parts_.state, u);
      }
      break;
    case Op::kReduceNorms:
      RunReduceNorms(instruction, stream);
      break;
    case Op::kUpdate:
      RunUpdate(bound, step);
      break;
    case Op::kCopyDown:
    case Op::kCopyUp:
      RunCopies(bound, step, stream);
      break;
  }
  if (step.inputs.probe != nullptr) LookAtReduced(bound, *step.inputs.probe);
  if (tracer != nullptr) tracer->End(token, stream);
}

void Executor::ZeroGaps(int unit, const at::Tensor& gradients) const {
  for (const auto& [begin, count] : gaps_[static_cast<size_t>(unit)]) gradients.narrow(0, begin, count).zero_();
}

void Executor::RunUnit(Bound& bound, const StepContext& step) {
  const Instruction& instruction = bound.compiled->instruction;
  UnitArgs& args = bound.args;
  const int u = instruction.units.first;
  TakeShape(bound, ShapeOf(step, instruction.micro_batch));
  if (bound.zero_gaps) ZeroGaps(u, args.gradients);
  if (bound.zero_tied_gaps) ZeroGaps(0, args.tied_gradients);
  if (bound.zero_all) args.gradients.zero_();
  args.gradient_scale = step.inputs.loss_factor / static_cast<double>(parts_.plan->batch.tokens_per_step());
  if (bound.resets_evaluation) args.step_state.narrow(0, kEvalLossSum, 2).zero_();
  if (bound.program_kind == ProgramKind::kTrain) args.dropout = DropoutOf(step, instruction.micro_batch);
  Probe* probe = step.inputs.probe.get();
  if (probe != nullptr) probe->BeforeUnit(instruction, args);
  Unit& unit = *units_[static_cast<size_t>(u)];
  switch (instruction.op) {
    case Op::kBackward:
      unit.Backward(args);
      break;
    case Op::kBackwardInput:
      unit.BackwardInput(args);
      break;
    case Op::kBackwardWeight:
      unit.BackwardWeight(args);
      break;
    default:
      unit.Forward(args);
  }
  if (!step.inputs.injected.empty()) Inject(instruction, args, step.inputs);
  if (probe != nullptr) probe->AfterUnit(instruction, args);
  if (bound.drops_pool && args.saved != nullptr) args.saved->pool.clear();
}

void Executor::RunUpdate(const Bound& bound, const StepContext& step) {
  const Instruction& instruction = bound.compiled->instruction;
  const at::Tensor& scalars = instruction.lane == Lane::kCpu ? step.slot->host_state : parts_.state->step_state();
  for (int u = instruction.units.first; u <= instruction.units.last; ++u) {
    const at::Tensor made =
        bound.made.empty() ? at::Tensor() : bound.made[static_cast<size_t>(u - instruction.units.first)];
    parts_.updater->Update(*parts_.state, u, scalars, made);
  }
}

void Executor::RunCopies(const Bound& bound, StepContext& step, CommStream stream) {
  for (const Copy& copy : bound.copies) copy.to.copy_(copy.from, /*non_blocking=*/true);
  if (!CopiesState(bound.compiled->instruction)) return;
  step.slot->host_state.copy_(parts_.state->step_state(), /*non_blocking=*/true);
  StampWhenDone(stream, &step.slot->completed);
}

void Executor::RunGather(const Bound& bound, CommStream stream) {
  const UnitRange units = bound.compiled->instruction.units;
  parts_.dp->GroupStart();
  for (int u = units.first; u <= units.last; ++u) {
    const at::Tensor& whole =
        bound.gathered.empty() ? parts_.state->weights(u) : bound.gathered[static_cast<size_t>(u - units.first)];
    const at::Tensor& own =
        bound.shards.empty() ? parts_.state->own_weights(u) : bound.shards[static_cast<size_t>(u - units.first)];
    parts_.dp->AllGather(own, whole, stream);
  }
  parts_.dp->GroupEnd();
}

void Executor::RunTpReduce(const Bound& bound) {
  for (const at::Tensor& gradient : bound.replicated) tensor_parallel_->AllReduce(gradient, ReduceOp::kSum);
  tensor_parallel_->Wait();
}

void Executor::RunReduce(const Bound& bound, CommStream stream) {
  for (const ReducedUnit& unit : bound.reduced) {
    if (unit.source.defined()) kernels::CastCopy(unit.source, unit.in);
  }
  parts_.dp->GroupStart();
  for (const ReducedUnit& unit : bound.reduced) {
    if (parts_.plan->effective_zero_stage == 0) {
      parts_.dp->AllReduce(unit.in, ReduceOp::kSum, stream);
    } else {
      parts_.dp->ReduceScatter(unit.in, unit.out, ReduceOp::kSum, stream);
    }
  }
  parts_.dp->GroupEnd();
  for (const ReducedUnit& unit : bound.reduced) {
    if (!unit.target.defined()) continue;
    if (unit.add) {
      kernels::AddInto(unit.out, unit.target);
    } else {
      kernels::CastCopy(unit.out, unit.target);
    }
  }
}

void Executor::RunReduceNorms(const Instruction& instruction, CommStream stream) {
  const bool tp = instruction.group == Group::kTp;
  if (!tp) parts_.dp->GroupStart();
  for (int u = instruction.units.first; u <= instruction.units.last; ++u) {
    const at::Tensor& norms = parts_.state->update_norms(u);
    if (tp) {
      tensor_parallel_->AllReduce(norms, ReduceOp::kSum);
    } else {
      parts_.dp->AllReduce(norms, ReduceOp::kSum, stream);
    }
  }
  if (tp) {
    tensor_parallel_->Wait();
  } else {
    parts_.dp->GroupEnd();
  }
}

// A value that is not finite in this rank's copy of what another rank counts skips the step too.
void Executor::LookAtCopies() const {
  const RankState& state = *parts_.state;
  bool any = false;
  for (const int u : state.held_units()) {
    for (const ElementRange& range : state.copied_ranges(u)) {
      kernels::SumOfSquares(state.own_gradient(u).narrow(0, range.begin, range.size()), of_copies_);
      any = true;
    }
  }
  if (!any) return;
  state.step_state().narrow(0, kNonFinite, 1).add_(of_copies_.narrow(0, kNonFinite, 1));
  of_copies_.zero_();
}

void Executor::RunStepStats(const Bound& bound, StepContext& step, CommStream stream) {
  const RankState& state = *parts_.state;
  const Plan& plan = *parts_.plan;
  const at::Tensor& scalars = state.step_state();
  if (bound.compiled->instruction.lane == Lane::kCompute) {
    for (const int u : state.held_units()) {
      for (const ElementRange& range : state.norm_ranges(u)) {
        kernels::SumOfSquares(state.own_gradient(u).narrow(0, range.begin, range.size()), scalars);
      }
    }
    LookAtCopies();
    return;
  }
  const bool train = bound.program_kind == ProgramKind::kTrain;
  // A head begins each evaluation with zeros; elsewhere the last one's sums over the world are still there.
  if (!train && state.held_units().back() != plan.head()) scalars.narrow(0, kEvalLossSum, 2).zero_();
  if (parts_.world->size() > 1) {
    parts_.world->AllReduce(train ? scalars.narrow(0, kLossSum, 4) : scalars.narrow(0, kEvalLossSum, 2), ReduceOp::kSum,
                            stream);
  }
  if (!train) return;
  kernels::FinishStepStats(scalars, {.nominal_tokens = static_cast<double>(plan.batch.tokens_per_step()),
                                     .max_norm = parts_.gradient_clipping,
                                     .skip_non_finite = step.inputs.skip_non_finite,
                                     .holds_skips = parts_.holds_skips,
                                     .loss_scaling = parts_.loss_scaling,
                                     .rate_factor = step.inputs.rate_factor});
}

}  // namespace trireme
