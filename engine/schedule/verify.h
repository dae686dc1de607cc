// Proves a set of programs (one a rank) sound before any of them runs.
#pragma once
#include <string>
#include <vector>

#include "engine/schedule/compile.h"

namespace trireme {

struct VerifyReport {
  std::vector<std::string> problems;  // empty: sound
  int64_t peak_arena_bytes = 0;       // of the ranks
  bool ok() const { return problems.empty(); }
};

// Checks, for all ranks together: every buffer is written before it is read, freed once and never used after; no
// transient buffer outlives the Program; two live buffers never overlap in the arena at any possible interleaving of
// the lanes; conflicting uses on different lanes are ordered by waits; collectives come in one common order within each
// group; no deadlock with rendezvous sends.
VerifyReport Verify(const Plan& plan, const std::vector<CompiledProgram>& ranks);

// Fills plan.memory and plan.traffic from the compiled training program.
void AccountMemory(Plan& plan, const CompiledProgram& program);

}  // namespace trireme
