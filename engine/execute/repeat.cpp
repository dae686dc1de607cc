// A held step made once more, for the first value that is not finite.
#include <algorithm>
#include <utility>

#include "engine/execute/bound_program.h"
#include "engine/execute/executor.h"

namespace trireme {

std::optional<BadValue> Executor::Repeat(StepInputs inputs, double loss_scale) {
  Drain();
  const at::Tensor& scalars = parts_.state->step_state();
  const at::Tensor before = scalars.cpu().clone(), start = before.clone();
  start.narrow(0, kLossSum, 4).zero_();
  start.narrow(0, kLossScale, 1).fill_(loss_scale);
  // A copy to the host after one to the device: the lanes' streams do not wait for the default one.
  const auto set = [&](const at::Tensor& values) {
    scalars.copy_(values);
    (void)scalars.cpu();
  };
  set(start);
  const auto probe = std::make_shared<Probe>(*parts_.plan, *parts_.state, train_->compiled);
  inputs.probe = probe;
  train_->has_run = false;  // the probe's kernels are loaded in this run
  StartRun(*train_, std::move(inputs));
  const auto ends = std::ranges::find_if(train_->compiled.instructions, [](const CompiledInstruction& compiled) {
    return compiled.instruction.op == Op::kStepStats;
  });
  Issue(*train_, static_cast<size_t>(ends - train_->compiled.instructions.begin()));
  Drain();
  train_->context->inputs = {};
  const std::optional<BadValue> found = probe->First();
  set(before);
  return found;
}

void Executor::Release() {
  Drain();
  parts_.state->step_state().narrow(0, kHeld, 1).zero_();
  (void)parts_.state->step_state().cpu();
}

void Executor::Inject(const Instruction& instruction, const UnitArgs& args, const StepInputs& inputs) const {
  const int unit = instruction.units.first;
  const bool head = unit == parts_.plan->head();
  for (const InjectedValue& injected : inputs.injected) {
    if (injected.unit != unit || injected.micro_batch != instruction.micro_batch) continue;
    const bool runs = injected.backward && !head
                          ? instruction.op == Op::kBackward || instruction.op == Op::kBackwardInput
                          : instruction.op == Op::kForward;
    if (!runs) continue;
    const at::Tensor forward = head ? args.step_state.narrow(0, kLossSum, 1) : args.output;
    const at::Tensor backward = args.input_gradient.defined() ? args.input_gradient : args.gradients;
    (injected.backward ? backward : forward).view({-1}).narrow(0, 0, 1).fill_(injected.value);
  }
}

void Executor::LookAtReduced(const Bound& bound, Probe& probe) const {
  const Instruction& instruction = bound.compiled->instruction;
  const RankState& state = *parts_.state;
  if (instruction.op != Op::kReduce && instruction.op != Op::kTieReduce && instruction.op != Op::kTpReduce) return;
  for (int unit = instruction.units.first; unit <= instruction.units.last; ++unit) {
    if (instruction.op == Op::kTieReduce || instruction.op == Op::kReduce) {
      probe.AfterReduce(instruction, unit, state.own_gradient(unit), state.own_begin(unit));
      continue;
    }
    for (const BufferUse& use : bound.compiled->writes) {
      if (use.key.unit == unit) probe.AfterReduce(instruction, unit, View(use), 0);
    }
  }
}

}  // namespace trireme
