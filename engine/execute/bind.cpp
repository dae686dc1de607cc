// Makes every view of a compiled Program once: at each step only kernels and collectives are left to issue.
#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/execute/bound_program.h"

namespace trireme {
namespace {

const BufferUse* Find(const std::vector<BufferUse>& uses, BufferKind kind, int unit) {
  const auto it =
      std::ranges::find_if(uses, [&](const BufferUse& use) { return use.key.kind == kind && use.key.unit == unit; });
  return it == uses.end() ? nullptr : &*it;
}

// Ends of the pieces that forward() and backward() run: up to the first instruction that only the next piece may run.
void FindPieces(const CompiledProgram& program, int64_t num_micro_batches, std::vector<size_t>& forward_end,
                std::vector<size_t>& backward_end) {
  const size_t size = program.instructions.size();
  for (int64_t m = 0; m < num_micro_batches; ++m) {
    size_t forward = size, backward = size;
    for (size_t i = size; i-- > 0;) {
      const Instruction& instruction = program.instructions[i].instruction;
      const bool of_backward =
          instruction.op == Op::kBackward || instruction.op == Op::kRecompute || instruction.op == Op::kReduce;
      if (instruction.micro_batch == m && of_backward) forward = i;
      const bool ahead = instruction.op == Op::kGather || instruction.op == Op::kCopyUp;
      if (instruction.op == Op::kStepStats || (instruction.micro_batch > m && !ahead)) backward = i;
    }
    forward_end.push_back(std::min(forward, backward));
    backward_end.push_back(backward);
  }
}

}  // namespace

at::Tensor Executor::View(const BufferUse& use) const {
  const Plan& plan = *parts_.plan;
  const RankState& state = *parts_.state;
  const int u = use.key.unit;
  switch (use.key.kind) {
    case BufferKind::kWeights:
      return state.weights(u);
    case BufferKind::kMaster:
      return state.masters(u);
    case BufferKind::kGradientSum:
      return state.gradient_sum(u);
    case BufferKind::kHostGradient:
      return state.host_gradient(u);
    case BufferKind::kUpdateNorms:
      return state.update_norms(u);
    case BufferKind::kStepState:
      return state.step_state();
    default:
      break;
  }
  const at::Tensor& whole_arena = InHostArena(use.key.kind) ? host_arena_ : arena_;
  const int64_t tokens = plan.boundary_tokens(), hidden = plan.model.hidden_size;
  const auto arena = [&](DType dtype, at::IntArrayRef shape) {
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    const int64_t bytes = elements * SizeOf(dtype);
    TRIREME_CHECK(bytes <= use.bytes && use.offset + bytes <= whole_arena.numel(),
                  Describe(use.key) + " needs " + std::to_string(bytes) + " bytes, the program gave it " +
                      std::to_string(use.bytes));
    return whole_arena.narrow(0, use.offset, bytes).view(ScalarTypeOf(dtype)).view(shape);
  };
  const auto unit = [&]() -> const UnitLayout& { return plan.units[static_cast<size_t>(u)]; };
  switch (use.key.kind) {
    case BufferKind::kTokens:
      return arena(DType::kInt32, {plan.batch.micro_batch_size, plan.batch.sequence_length + 1});
    case BufferKind::kGathered:
      return arena(plan.dtypes.compute, {unit().padded_elements});
    case BufferKind::kBoundary:
    case BufferKind::kBoundaryGradient:
      return arena(plan.dtypes.compute, {tokens, hidden});
    case BufferKind::kSaved:
    case BufferKind::kDeferred:
      return arena(DType::kUInt8, {use.bytes});
    case BufferKind::kGradient:
      return arena(plan.dtypes.accumulate, {unit().padded_elements});
    case BufferKind::kStaging:
      return arena(plan.dtypes.communicate, {use.key.slot == 0 ? unit().shard_elements : unit().padded_elements});
    case BufferKind::kShard:
    case BufferKind::kHostWeights:
      return arena(plan.dtypes.compute, {state.own_elements(u)});
    default:
      TRIREME_CHECK(false, "no view of " + Describe(use.key));
      return {};
  }
}

at::Tensor Executor::OwnView(const BufferUse& use) const {
  if (use.key.kind == BufferKind::kWeights) return parts_.state->own_weights(use.key.unit);
  if (use.key.kind == BufferKind::kGradientSum) return parts_.state->own_gradient(use.key.unit);
  return View(use);
}

Saved* Executor::SavedOf(const BufferUse& use) {
  std::unique_ptr<Saved>& saved = saved_[{use.key, use.offset}];
  if (!saved) saved = std::make_unique<Saved>();
  return saved.get();
}

std::unique_ptr<Executor::BoundProgram> Executor::Bind(CompiledProgram compiled) {
  auto program = std::make_unique<BoundProgram>();
  program->compiled = std::move(compiled);
  program->tickets.resize(program->compiled.instructions.size());
  FindPieces(program->compiled, parts_.plan->batch.num_micro_batches, program->forward_end, program->backward_end);
  for (const CompiledInstruction& source : program->compiled.instructions) {
    program->instructions.push_back(std::make_unique<Bound>());
    Bound& bound = *program->instructions.back();
    bound.compiled = &source;
    bound.program_kind = program->compiled.kind;
    switch (source.instruction.op) {
      case Op::kLoad:
        bound.tokens = View(source.writes.at(0));
        break;
      case Op::kForward:
      case Op::kRecompute:
      case Op::kBackward:
      case Op::kBackwardInput:
      case Op::kBackwardWeight:
        BindUnit(source, bound);
        break;
      case Op::kSend:
      case Op::kRecv:
        BindTransfer(source, *program);
        break;
      case Op::kReduce:
        BindReduce(source, bound);
        break;
      case Op::kTpReduce:
        for (const BufferUse& use : source.writes) {
          for (const Segment& segment : parts_.plan->units[static_cast<size_t>(use.key.unit)].segments) {
            if (segment.parameter.split()) continue;
            bound.replicated.push_back(View(use).narrow(0, segment.begin, segment.count));
          }
        }
        break;
      case Op::kGather:
        for (const BufferUse& use : source.writes) {
          if (use.key.kind == BufferKind::kGathered) bound.gathered.push_back(View(use));
        }
        for (const BufferUse& use : source.reads) {
          if (use.key.kind == BufferKind::kShard) bound.shards.push_back(View(use));
        }
        break;
      case Op::kUpdate:
        for (const BufferUse& use : source.writes) {
          if (!IsPersistent(use.key.kind)) bound.made.push_back(View(use));
        }
        break;
      case Op::kCopyDown:
      case Op::kCopyUp:
        if (!CopiesState(source.instruction)) BindCopy(source, bound);
        break;
      default:
        break;
    }
  }
  return program;
}

void Executor::BindUnit(const CompiledInstruction& source, Bound& bound) {
  const Plan& plan = *parts_.plan;
  const Instruction& instruction = source.instruction;
  const int u = instruction.units.first;
  const UnitSpec& spec = plan.units[static_cast<size_t>(u)].spec;
  const bool backward =
      instruction.op == Op::kBackward || instruction.op == Op::kBackwardInput || instruction.op == Op::kBackwardWeight;
  const bool train = bound.program_kind == ProgramKind::kTrain;
  UnitArgs& args = bound.args;
  args.micro_batch_size = plan.batch.micro_batch_size;
  args.sequence_length = plan.batch.sequence_length;
  args.step_state = parts_.state->step_state();
  args.workspace = workspace_;
  args.tp = tensor_parallel_.get();
  args.sequence_parallel = plan.sequence_parallel;
  const auto view = [&](const std::vector<BufferUse>& uses, BufferKind kind, int unit, at::Tensor& out) {
    if (const BufferUse* use = Find(uses, kind, unit)) out = View(*use);
  };
  for (const auto& [unit, tensor] : {std::pair{u, &args.weights}, std::pair{0, &args.tied_weights}}) {
    if (tensor == &args.tied_weights && !spec.reads_tied_embedding) continue;
    view(source.reads, BufferKind::kWeights, unit, *tensor);
    view(source.reads, BufferKind::kGathered, unit, *tensor);
  }
  for (const BufferUse& use : source.reads) {
    if (use.key.kind == BufferKind::kTokens) args.tokens = View(use);
  }
  view(source.reads, BufferKind::kBoundary, u - 1, args.input);
  view(source.writes, BufferKind::kBoundary, u, args.output);
  view(source.reads, BufferKind::kBoundaryGradient, u, args.output_gradient);
  view(source.writes, BufferKind::kBoundaryGradient, u - 1, args.input_gradient);
  view(source.writes, BufferKind::kDeferred, u, args.deferred);
  view(source.reads, BufferKind::kDeferred, u, args.deferred);
  const std::vector<BufferUse>& holds_saved = backward ? source.reads : source.writes;
  if (const BufferUse* use = Find(holds_saved, BufferKind::kSaved, u); use != nullptr) {
    args.saved = SavedOf(*use);
    args.saved->arena = View(*use);
    bound.drops_pool = std::ranges::any_of(instruction.frees, [&](const BufferKey& key) { return key == use->key; });
    if (bound.drops_pool && !backward) args.use = ForwardUse::kRecompute;
  }
  if (!train) args.use = ForwardUse::kEvaluate;
  bound.resets_evaluation = !train && spec.kind == UnitKind::kHead && instruction.micro_batch == 0;
  for (const BufferUse& use : source.adds) {
    const bool gradient = use.key.kind == BufferKind::kGradientSum || use.key.kind == BufferKind::kGradient;
    if (!gradient) continue;
    const bool tied = use.key.unit != u;
    (tied ? args.tied_gradients : args.gradients) = View(use);
    (tied ? args.add_tied_gradients : args.add_gradients) = !use.first_add;
    (tied ? bound.zero_tied_gaps : bound.zero_gaps) = use.first_add && use.key.kind == BufferKind::kGradient;
    // Each half of a split backward pass writes a part of the unit's gradients.
    if (use.first_add && instruction.op == Op::kBackwardInput) {
      bound.zero_all = args.add_gradients = true;
      bound.zero_gaps = false;
    }
  }
}

// A unit has one buffer on either side; StepState may stand among them to order Programs (make_program.h).
void Executor::BindCopy(const CompiledInstruction& source, Bound& bound) const {
  for (int u = source.instruction.units.first; u <= source.instruction.units.last; ++u) {
    const auto of_unit = [u](const BufferUse& use) { return use.key.unit == u; };
    const auto from = std::ranges::find_if(source.reads, of_unit), to = std::ranges::find_if(source.writes, of_unit);
    TRIREME_CHECK(from != source.reads.end() && to != source.writes.end(), "a copy has a source and a destination");
    bound.copies.push_back({OwnView(*from), OwnView(*to)});
  }
}

// The first transfer of a post carries out all of them.
void Executor::BindTransfer(const CompiledInstruction& source, BoundProgram& program) {
  const Instruction& instruction = source.instruction;
  const bool sends = instruction.op == Op::kSend;
  size_t first = program.instructions.size() - 1;
  while (first > 0) {
    const Instruction& before = program.instructions[first - 1]->compiled->instruction;
    if (before.group != Group::kPp || before.post != instruction.post) break;
    --first;
  }
  program.instructions[first]->transfers.push_back(
      {sends, instruction.peer, View(sends ? source.reads.at(0) : source.writes.at(0))});
}

void Executor::BindReduce(const CompiledInstruction& source, Bound& bound) {
  const RankState& state = *parts_.state;
  const int stage = parts_.plan->effective_zero_stage;
  const auto staging = [&](int unit, int slot) {
    for (const BufferUse& use : source.writes) {
      if (use.key.kind == BufferKind::kStaging && use.key.unit == unit && use.key.slot == slot) return View(use);
    }
    return at::Tensor();
  };
  for (int u = source.instruction.units.first; u <= source.instruction.units.last; ++u) {
    ReducedUnit unit;
    const BufferUse* gradient = Find(source.reads, BufferKind::kGradient, u);
    unit.in = gradient != nullptr ? View(*gradient) : state.gradient_sum(u);
    if (const at::Tensor whole = staging(u, 1); whole.defined()) unit.source = std::exchange(unit.in, whole);
    if (stage >= 2) {
      const BufferUse* sum = Find(source.adds, BufferKind::kGradientSum, u);
      unit.out = staging(u, 0);
      unit.target = state.gradient_sum(u);
      unit.add = !sum->first_add;
    } else {
      unit.out = unit.in.narrow(0, state.own_begin(u), state.own_elements(u));  // all of it at stage 0
      if (unit.source.defined()) unit.target = state.own_gradient(u);
    }
    bound.reduced.push_back(std::move(unit));
  }
}

}  // namespace trireme
