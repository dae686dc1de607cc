#include "engine/schedule/dependents.h"

namespace trireme {
namespace {

size_t Index(int32_t id) { return static_cast<size_t>(id); }

}  // namespace

Dependents::Dependents(const CompiledProgram& program)
    : same_step(program.instructions.size()),
      next_step(program.instructions.size()),
      waits(program.instructions.size()),
      carried_waits(program.instructions.size()) {
  std::map<BufferKey, LastUses> last_uses;
  for (const CompiledInstruction& compiled : program.instructions) Remember(compiled.instruction, last_uses);
  for (const CompiledInstruction& compiled : program.instructions) {
    const int32_t id = compiled.instruction.id;
    for (const int32_t wait : compiled.waits) same_step[Index(wait)].push_back(id);
    waits[Index(id)] = static_cast<int32_t>(compiled.waits.size());
    for (const CompiledInstruction::Carried& carried : compiled.carried) {
      Carry(compiled.instruction, carried, last_uses[carried.key]);
    }
  }
}

void Dependents::Remember(const Instruction& instruction, std::map<BufferKey, LastUses>& last_uses) {
  const auto use = [&](const std::vector<BufferKey>& keys, bool writes) {
    for (const BufferKey& key : keys) {
      if (!IsPersistent(key.kind)) continue;
      LastUses& last = last_uses[key];
      last.of_lane[static_cast<size_t>(instruction.lane)] = instruction.id;
      if (writes) last.writer = instruction.id;
    }
  };
  use(instruction.reads, false);
  use(instruction.writes, true);
  use(instruction.adds, true);
}

void Dependents::Carry(const Instruction& instruction, const CompiledInstruction::Carried& carried,
                       const LastUses& last) {
  const auto wait_for = [&](int32_t before) {
    if (before < 0) return;
    next_step[Index(before)].push_back(instruction.id);
    ++carried_waits[Index(instruction.id)];
  };
  if (!carried.writes) return wait_for(last.writer);
  for (size_t lane = 0; lane < kNumLanes; ++lane) {
    if (lane != static_cast<size_t>(instruction.lane)) wait_for(last.of_lane[lane]);
  }
}

}  // namespace trireme
