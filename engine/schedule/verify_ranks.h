// The checks of Verify that need all ranks at once. Private to this room. Each appends to `problems`.
#pragma once
#include <string>
#include <vector>

#include "engine/schedule/compile.h"

namespace trireme {

// Collectives of one group, and of groups that ranks have in common, come in one order with equal operands.
void CheckCollectives(const Plan& plan, const std::vector<CompiledProgram>& ranks, std::vector<std::string>& problems);

// Runs the lanes of all ranks, first in, first out, where a collective goes on only when each rank of its group is at
// it.
void CheckDeadlock(const Plan& plan, const std::vector<CompiledProgram>& ranks, std::vector<std::string>& problems);

}  // namespace trireme
