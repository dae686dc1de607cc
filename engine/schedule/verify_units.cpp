#include "engine/schedule/verify_units.h"

#include <fmt/core.h>

namespace trireme {
namespace {

// Passes of one unit and micro-batch.
struct Passes {
  int forward = 0, backward = 0, input = 0, weight = 0;

  bool BackwardOnce() const {
    return (backward == 1 && input + weight == 0) || (backward == 0 && input == 1 && weight == 1);
  }
  bool NoBackward() const { return backward + input + weight == 0; }
};

}  // namespace

std::vector<std::string> UnitsNotRunOnce(const Plan& plan, ProgramKind kind,
                                         const std::vector<CompiledProgram>& pp_ranks) {
  const auto micro_batches = static_cast<size_t>(plan.batch.num_micro_batches);
  std::vector<std::vector<Passes>> units(plan.units.size(), std::vector<Passes>(micro_batches));
  std::vector<std::string> problems;
  for (const CompiledProgram& program : pp_ranks) {
    for (const CompiledInstruction& compiled : program.instructions) {
      const Instruction& instruction = compiled.instruction;
      const Op op = instruction.op;
      const bool pass =
          op == Op::kForward || op == Op::kBackward || op == Op::kBackwardInput || op == Op::kBackwardWeight;
      if (!pass) continue;
      const int64_t m = instruction.micro_batch;
      if (m < 0 || m >= plan.batch.num_micro_batches || instruction.units.first != instruction.units.last) {
        problems.push_back(Describe(instruction, plan) + " is no pass of one unit and micro-batch");
        continue;
      }
      Passes& passes = units[static_cast<size_t>(instruction.units.first)][static_cast<size_t>(m)];
      ++(op == Op::kForward         ? passes.forward
         : op == Op::kBackward      ? passes.backward
         : op == Op::kBackwardInput ? passes.input
                                    : passes.weight);
      if (op == Op::kBackwardWeight && passes.input == 0) {
        problems.push_back(Describe(instruction, plan) + " comes before its BackwardInput");
      }
    }
  }
  for (int unit = 0; unit < plan.num_units(); ++unit) {
    for (size_t m = 0; m < micro_batches; ++m) {
      const Passes& passes = units[static_cast<size_t>(unit)][m];
      const bool has_backward = kind == ProgramKind::kTrain && unit != plan.head();
      if (passes.forward == 1 && (has_backward ? passes.BackwardOnce() : passes.NoBackward())) continue;
      problems.push_back(fmt::format("{} runs micro-batch {} {} times forward, {} backward, {} backward in halves",
                                     plan.units[static_cast<size_t>(unit)].spec.name, m, passes.forward,
                                     passes.backward, passes.input));
    }
  }
  return problems;
}

}  // namespace trireme
