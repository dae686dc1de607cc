// Memory over time of a compiled Program: what is live while each instruction runs, by class.
//   for (const LiveBuffer& buffer : LiveBuffersOf(plan, program)) ...   // a picture: begin and end are instructions
#pragma once
#include <cstdint>
#include <vector>

#include "engine/plan/memory_account.h"
#include "engine/schedule/compile.h"

namespace trireme {

// A transient buffer, from the instruction that writes it first to the one that frees it (its last reader's lane is
// joined there). With a timeline (simulated or traced): from the start of `begin` to the end of `end`.
struct LiveBuffer {
  BufferKey key;
  MemoryClass memory_class = MemoryClass::kActivations;
  int64_t bytes = 0;
  int32_t begin = 0, end = 0;  // ids, inclusive
  bool on_host = false;
};

MemoryClass ClassOf(BufferKind kind);

// All of a program, in the order of `begin`; what LibTorch returns (kAttention) stands beside the rest of its kSaved.
std::vector<LiveBuffer> LiveBuffersOf(const Plan& plan, const CompiledProgram& program);

// Of one device: one entry an instruction, by its id, in the order of issue, persistent classes, workspace and tables
// too. kGaps is 0: the arena has one size, of which this is in use. `plan` has its account (AccountMemory).
std::vector<MemoryByClass> MemorySeries(const Plan& plan, const CompiledProgram& program);

// What the arena holds while it holds most (CompiledProgram::arena_at_peak).
MemoryAccount::Arena ArenaAtPeak(const CompiledProgram& program);

}  // namespace trireme
