#include "engine/execute/probe.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/inspect_rules.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/scalar_type.h"

namespace trireme {
namespace {

constexpr std::string_view kForward = "forward", kBackward = "backward", kReduction = "reduction";

bool RunsBackward(Op op) { return op == Op::kBackward || op == Op::kBackwardInput || op == Op::kBackwardWeight; }
bool Reduces(Op op) { return op == Op::kReduce || op == Op::kTpReduce || op == Op::kTieReduce; }

// Instructions of one unit and phase, in the order in which they run; each has room for so many looks.
constexpr int64_t kLooksOfInstruction = 10'000;
int64_t OrderInPhase(Op op) {
  switch (op) {
    case Op::kBackward:
    case Op::kBackwardInput:
    case Op::kReduce:
      return 1;
    case Op::kBackwardWeight:
    case Op::kTieReduce:
      return 2;
    default:
      return 0;
  }
}

int64_t MostLooks(const Plan& plan, const CompiledProgram& program) {
  constexpr int64_t kBoundaries = 8;
  const auto of_unit = [&](int unit) {
    const UnitLayout& layout = plan.units[static_cast<size_t>(unit)];
    return static_cast<int64_t>(2 * layout.segments.size() + layout.spec.saved.size() + layout.spec.deferred.size()) +
           kBoundaries;
  };
  int64_t looks = 0;
  for (const CompiledInstruction& compiled : program.instructions) {
    const Instruction& instruction = compiled.instruction;
    const bool looked_at = instruction.op == Op::kForward || instruction.op == Op::kRecompute ||
                           RunsBackward(instruction.op) || Reduces(instruction.op);
    if (!looked_at) continue;
    for (int unit = instruction.units.first; unit <= instruction.units.last; ++unit) looks += of_unit(unit);
    if (instruction.units.last == plan.head()) looks += of_unit(0);  // a tied weight
  }
  return std::max<int64_t>(1, looks);
}

}  // namespace

Probe::Probe(const Plan& plan, const RankState& state, const CompiledProgram& program) : plan_(plan), state_(state) {
  results_ = at::full({MostLooks(plan, program)}, kernels::kAllFinite,
                      at::TensorOptions().dtype(at::kLong).device(state.device()));
  (void)results_.narrow(0, 0, 1).item<int64_t>();  // there before another stream works on it
}

ProbeMoment Probe::MomentOf(const Instruction& instruction, int unit, int64_t first_look) const {
  const bool backward = RunsBackward(instruction.op) || instruction.op == Op::kRecompute;
  ProbeMoment moment;
  moment.micro_batch = instruction.micro_batch >= 0 ? instruction.micro_batch : plan_.batch.num_micro_batches;
  moment.phase = Reduces(instruction.op) ? 2 : (backward ? 1 : 0);
  moment.place = moment.phase == 0 ? unit : plan_.head() - unit;
  moment.look = OrderInPhase(instruction.op) * kLooksOfInstruction + first_look;
  return moment;
}

void Probe::LookAt(ProbeMoment& moment, const at::Tensor& values, std::string tensor, std::string_view direction) {
  ++moment.look;
  if (!values.defined() || values.numel() == 0) return;
  at::Tensor result;
  {
    const std::lock_guard lock(mutex_);
    const auto slot = static_cast<int64_t>(looks_.size());
    TRIREME_CHECK(slot < results_.numel(), "more looks than the program was counted to need");
    looks_.push_back({moment, std::move(tensor), direction});
    result = results_.narrow(0, slot, 1);
  }
  kernels::FindNonFinite(values.contiguous(), result);
}

void Probe::LookAtFlat(ProbeMoment& moment, int unit, const at::Tensor& flat, int64_t begin, const char* what,
                       std::string_view direction) {
  const std::vector<Segment>& segments = plan_.units[static_cast<size_t>(unit)].segments;
  const int64_t end = begin + flat.numel();
  const auto look = [&](const Segment& segment) {
    const int64_t first = std::max(segment.begin, begin), last = std::min(segment.begin + segment.count, end);
    const bool here = first < last;
    LookAt(moment, here ? flat.narrow(0, first - begin, last - first) : at::Tensor(), what + segment.parameter.name,
           direction);
  };
  if (direction == kForward) {
    std::ranges::for_each(segments, look);
  } else {
    std::for_each(segments.rbegin(), segments.rend(), look);
  }
}

void Probe::BeforeUnit(const Instruction& instruction, const UnitArgs& args) {
  const int unit = instruction.units.first;
  const std::string& name = plan_.units[static_cast<size_t>(unit)].spec.name;
  ProbeMoment moment = MomentOf(instruction, unit, 0);
  if (RunsBackward(instruction.op)) {
    LookAt(moment, args.output_gradient, "the gradient of the output of " + name, kBackward);
    return;
  }
  if (instruction.op == Op::kForward) LookAt(moment, args.input, "the input of " + name, kForward);
  if (args.weights.defined()) LookAtFlat(moment, unit, args.weights, 0, "the weight ", kForward);
  if (args.tied_weights.defined()) LookAtFlat(moment, 0, args.tied_weights, 0, "the weight ", kForward);
}

void Probe::AfterUnit(const Instruction& instruction, const UnitArgs& args) {
  const int unit = instruction.units.first;
  const UnitSpec& spec = plan_.units[static_cast<size_t>(unit)].spec;
  ProbeMoment moment = MomentOf(instruction, unit, kLooksOfInstruction / 2);
  if (RunsBackward(instruction.op)) {
    if (instruction.op == Op::kBackwardInput) LookAtSaved(moment, instruction, args, kBackward);
    LookAtGradients(moment, instruction, args);
    return;
  }
  const std::string_view direction = instruction.op == Op::kRecompute ? kBackward : kForward;
  LookAtSaved(moment, instruction, args, direction);
  if (spec.kind == UnitKind::kHead) {
    LookAt(moment, args.step_state.narrow(0, kLossSum, 1), "the loss", kForward);
    LookAtGradients(moment, instruction, args);
  } else if (instruction.op == Op::kForward) {
    LookAt(moment, args.output, "the output of " + spec.name, kForward);
  }
}

// What Forward leaves for Backward, or BackwardInput for BackwardWeight. Modules of the user's leave what autograd
// likes.
void Probe::LookAtSaved(ProbeMoment& moment, const Instruction& instruction, const UnitArgs& args,
                        std::string_view direction) {
  const UnitSpec& spec = plan_.units[static_cast<size_t>(instruction.units.first)].spec;
  const bool deferred = instruction.op == Op::kBackwardInput;
  const at::Tensor buffer = deferred ? args.deferred : (args.saved != nullptr ? args.saved->arena : at::Tensor());
  if (spec.autograd || !buffer.defined()) return;
  const std::vector<SavedSpec>& tensors = deferred ? spec.deferred : spec.saved;
  const SavedLayout layout = LayOutSaved(tensors, plan_.dtypes, args.micro_batch_size * args.sequence_length);
  const at::ScalarType compute = ScalarTypeOf(plan_.dtypes.compute);
  bool attended = false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor values;
    if (layout.offsets[i] >= 0) {
      const at::ScalarType type =
          tensors[i].compute_dtype ? compute : (compute == at::kDouble ? at::kDouble : at::kFloat);
      values = buffer.narrow(0, layout.offsets[i], layout.bytes[i]).view(type);
    } else if (tensors[i].place == SavedSpec::Place::kPool && !std::exchange(attended, true) &&
               !args.saved->pool.empty()) {
      values = kernels::AttentionOutput(args.saved->pool);  // of LibTorch's tensors the first; the others are its own
    }
    LookAt(moment, values, tensors[i].name + " of " + spec.name, direction);
  }
}

void Probe::LookAtGradients(ProbeMoment& moment, const Instruction& instruction, const UnitArgs& args) {
  const int unit = instruction.units.first;
  if (args.gradients.defined()) LookAtFlat(moment, unit, args.gradients, 0, "the gradient of ", kBackward);
  if (args.tied_gradients.defined()) LookAtFlat(moment, 0, args.tied_gradients, 0, "the gradient of ", kBackward);
  LookAt(moment, args.input_gradient,
         "the gradient of the input of " + plan_.units[static_cast<size_t>(unit)].spec.name, kBackward);
}

void Probe::AfterReduce(const Instruction& instruction, int unit, const at::Tensor& sum, int64_t begin) {
  ProbeMoment moment = MomentOf(instruction, unit, 0);
  LookAtFlat(moment, unit, sum, begin, "the summed gradient of ", kReduction);
}

std::optional<BadValue> Probe::First() const {
  const at::Tensor results = results_.cpu();
  const int64_t* found = results.const_data_ptr<int64_t>();
  std::optional<BadValue> first;
  for (size_t i = 0; i < looks_.size(); ++i) {
    const Look& look = looks_[i];
    if (found[i] == kernels::kAllFinite || (first && first->moment <= look.moment)) continue;
    first = BadValue{look.moment, look.tensor, std::string(look.direction), found[i] % 2 == 1, found[i] / 2};
  }
  return first;
}

}  // namespace trireme
