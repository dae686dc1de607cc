// Proves a set of programs (one a rank) sound before any of them runs.
#pragma once
#include <string>
#include <vector>

#include "engine/schedule/compile.h"

namespace trireme {

struct VerifyReport {
  std::vector<std::string> problems;  // empty: sound. At most kMaxProblems a rank
  int64_t peak_arena_bytes = 0;       // of the ranks
  bool ok() const { return problems.empty(); }
};
constexpr size_t kMaxProblems = 20;

// Checks, for all ranks together: every buffer is written before it is read, freed once and never used after; no
// transient buffer outlives the Program; two live buffers never overlap in the arena at any possible interleaving of
// the lanes; conflicting uses on different lanes are ordered by waits; the same holds when the Program runs twice in a
// row (carried hazards, reuse of the arena); collectives come in one common order, with equal sizes, within each group;
// no deadlock with rendezvous sends. What happens before what is found anew, from waits, carried hazards and the order
// of lanes.
VerifyReport Verify(const Plan& plan, const std::vector<CompiledProgram>& ranks);

// The checks of one rank when these Programs run one after the other (training, evaluation, training).
VerifyReport VerifySequence(const Plan& plan, const std::vector<const CompiledProgram*>& programs);

// Fills plan.memory and plan.traffic from the compiled training program. It may have fewer micro-batches than the plan:
// what each one sends is scaled.
// One program a pipeline rank, in order; traffic is the largest of a rank.
void AccountMemory(Plan& plan, const std::vector<CompiledProgram>& pp_ranks);
// The same from training programs made here, of as many micro-batches as it takes until the arena repeats: the third at
// pp 1.
constexpr int64_t kFoldedMicroBatches = 3;
int64_t FoldedMicroBatches(
    const Plan& plan);  // a pipeline must have filled up, and its virtual stages need whole groups
void AccountMemory(Plan& plan);

}  // namespace trireme
