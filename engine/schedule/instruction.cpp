#include "engine/schedule/instruction.h"

#include <fmt/core.h>

#include <array>

namespace trireme {

bool CopiesState(const Instruction& instruction) {
  return instruction.op == Op::kCopyDown && !instruction.reads.empty() &&
         instruction.reads.front().kind == BufferKind::kStepState;
}

std::string_view Name(Op op) {
  static constexpr std::array<std::string_view, 19> kNames = {
      "Load",        "Forward",     "Recompute", "Backward", "BackwardInput", "BackwardWeight", "Send",
      "Recv",        "Gather",      "Release",   "Reduce",   "TpReduce",      "TieReduce",      "StepStats",
      "UpdateNorms", "ReduceNorms", "Update",    "CopyDown", "CopyUp"};
  return kNames[static_cast<size_t>(op)];
}

std::string_view Name(Lane lane) {
  static constexpr std::array<std::string_view, kNumLanes> kNames = {"compute", "tp", "pp", "dp", "up", "down", "cpu"};
  return kNames[static_cast<size_t>(lane)];
}

std::string_view Name(BufferKind kind) {
  static constexpr std::array<std::string_view, 17> kNames = {
      "weights",    "master",   "gradient_sum", "update_norms", "host_gradient", "host_state",
      "step_state", "tokens",   "gathered",     "boundary",     "saved",         "boundary_gradient",
      "deferred",   "gradient", "staging",      "shard",        "host_weights"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view Name(Group group) {
  static constexpr std::array<std::string_view, 6> kNames = {"none", "dp", "world", "tie", "pp", "tp"};
  return kNames[static_cast<size_t>(group)];
}

std::string Describe(const BufferKey& key) {
  std::string text(Name(key.kind));
  if (key.unit >= 0) text += fmt::format("[unit {}]", key.unit);
  if (key.chunk > 0) text += fmt::format(" chunk {}", key.chunk);
  if (key.micro_batch >= 0) text += fmt::format(" micro-batch {}", key.micro_batch);
  if (key.slot > 0) text += fmt::format(" slot {}", key.slot);
  return text;
}

std::string Describe(const Instruction& instruction, const Plan& plan) {
  std::string text(Name(instruction.op));
  const auto unit_name = [&](int unit) {
    return unit >= 0 && unit < plan.num_units() ? plan.units[static_cast<size_t>(unit)].spec.name
                                                : fmt::format("unit {}", unit);
  };
  const bool has_units = instruction.op != Op::kLoad && instruction.op != Op::kStepStats && !CopiesState(instruction);
  if (has_units) {
    text += " " + unit_name(instruction.units.first);
    if (instruction.units.last != instruction.units.first) text += ".." + unit_name(instruction.units.last);
  }
  if (instruction.peer >= 0)
    text += fmt::format(" {} stage of rank {}", instruction.op == Op::kSend ? "to the" : "from the", instruction.peer);
  if (instruction.micro_batch >= 0) text += fmt::format(" micro-batch {}", instruction.micro_batch);
  return text;
}

}  // namespace trireme
