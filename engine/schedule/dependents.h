// Which instructions wait for one, in the same step and in the next one: what Compile derived, turned round. Private to
// this room.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/schedule/compile.h"

namespace trireme {

struct Dependents {
  // By instruction id: those that wait for it, and how many it waits for.
  std::vector<std::vector<int32_t>> same_step, next_step;
  std::vector<int32_t> waits, carried_waits;

  explicit Dependents(const CompiledProgram& program);

 private:
  struct LastUses {  // of a persistent buffer in one step
    std::array<int32_t, kNumLanes> of_lane;
    int32_t writer = -1;
    LastUses() { of_lane.fill(-1); }
  };
  static void Remember(const Instruction& instruction, std::map<BufferKey, LastUses>& last_uses);
  void Carry(const Instruction& instruction, const CompiledInstruction::Carried& carried, const LastUses& last);
};

}  // namespace trireme
