// Program -> CompiledProgram: cross-lane waits and arena offsets, derived from reads, writes, adds and frees alone.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/schedule/instruction.h"

namespace trireme {

// One buffer as one instruction sees it.
struct BufferUse {
  BufferKey key;
  int64_t offset = -1;  // bytes into the arena (InHostArena: the host's); -1: persistent
  int64_t bytes = 0;
  bool first_add =
      false;  // `adds` only: nothing was added in this life (transient) or step (persistent): write instead of add
  bool operator==(const BufferUse&) const = default;
};

struct CompiledInstruction {
  Instruction instruction;
  std::vector<BufferUse> reads, writes, adds;  // parallel to the instruction's lists
  // Instructions of other lanes, earlier in this Program, that must have ended before this one starts; at most one a
  // lane, and none that an earlier instruction of this lane already waited for.
  std::vector<int32_t> waits;
  // Hazards with the previous Programs: wait for their last uses of this persistent buffer on other lanes (of its last
  // writer, if this instruction only reads). It stands at each lane's first reader and at the first writer or adder in
  // this Program. Programs differ in what they use (evaluation has no gradients), so uses are remembered until a later
  // Program's replace them.
  struct Carried {
    BufferKey key;
    bool writes = false;
    bool operator==(const Carried&) const = default;
  };
  std::vector<Carried> carried;
  bool operator==(const CompiledInstruction&) const = default;
};

struct CompiledProgram {
  ProgramKind kind = ProgramKind::kTrain;
  int rank = 0;
  std::vector<CompiledInstruction> instructions;
  int64_t arena_bytes = 0;       // planned peak
  int64_t host_arena_bytes = 0;  // of the buffers in the host's arena
  // What the lanes may hold of the arena together, where that is most; what is freed counts until it may be used anew.
  std::vector<BufferUse> arena_at_peak;
  int64_t peak_pool_bytes = 0;  // tensors that LibTorch returned and that kSaved holds, at their peak on lane compute
};

struct CompileOptions {
  std::function<int64_t(const BufferKey&)> bytes;
  std::function<int64_t(const BufferKey&)> pool_bytes;  // may be empty: none
  // How many instructions that free buffers may be unfinished on one lane while another lane allocates: older ones are
  // waited for. Bounds the memory that a lagging reduction or gather can hold. A freed range is reused only by lanes
  // that joined the freeing one.
  int max_unjoined_frees = 2;
  int64_t alignment = 512;
};

// Transient buffers must be written or added to before they are read, and a life ends with `frees`: TRIREME_CHECK.
// Cost: instructions x (their uses x log of buffers + freed ranges that some lane has not joined yet).
CompiledProgram Compile(const Program& program, const CompileOptions& options);

CompileOptions OptionsOf(const Plan& plan);  // sizes of this plan; `plan` must outlive them

}  // namespace trireme
