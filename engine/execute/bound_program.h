// A compiled Program with every view made once: what the executor needs at each instruction without building a tensor.
// Private to this room.
#pragma once
#include <vector>

#include "engine/execute/executor.h"

namespace trireme {

// One run of a Program: kept in a ring, since lanes may still work on a run when the next one is issued.
struct StepContext {
  StepInputs inputs;
  Executor::Slot* slot = nullptr;
};

struct Executor::Slot {
  StepContext context;
  int64_t number = -1;
  std::chrono::steady_clock::time_point completed;
  Ticket done;                          // CopyDown
  at::Tensor host_state;                // double [kStepStateSize], pinned on GPUs: kHostState too
  std::vector<at::Tensor> host_tokens;  // GPUs: pinned, one a micro-batch
};

// How one unit's gradients are reduced: source -> in (converted, where the reduction travels in another type) ->
// collective -> out
// -> target (written or added).
struct Executor::ReducedUnit {
  at::Tensor source;  // undefined: `in` is where gradients added up
  at::Tensor in, out;
  at::Tensor target;  // undefined: `out` is where the sum belongs
  bool add = false;
};

struct Executor::PostedTransfer {
  bool sends = false;
  int peer = 0;  // pipeline rank
  at::Tensor tensor;
};

struct Executor::Copy {
  at::Tensor from, to;
};

struct Executor::Bound {
  const CompiledInstruction* compiled = nullptr;
  ProgramKind program_kind = ProgramKind::kTrain;
  UnitArgs args;                                   // Forward, Recompute, Backward
  at::Tensor tokens;                               // Load
  bool zero_gaps = false, zero_tied_gaps = false;  // first add into a transient gradient
  bool zero_all = false;                           // first half of a split backward pass
  bool resets_evaluation = false;                  // first head of an evaluation
  bool drops_pool = false;                         // the saved tensors of LibTorch end here
  std::vector<at::Tensor> gathered;                // Gather at ZeRO 3, one a unit
  std::vector<at::Tensor> shards;                  // its source with offload_param, one a unit
  std::vector<at::Tensor> made;                    // Update whose weights lie elsewhere, one a unit
  std::vector<Copy> copies;                        // CopyDown, CopyUp of units
  std::vector<ReducedUnit> reduced;                // Reduce, one a unit
  std::vector<at::Tensor> replicated;              // TpReduce: gradients of what every tp rank has whole
  at::Tensor part, whole;                          // TpSplit, TpGather: a boundary, flat
  std::vector<PostedTransfer> transfers;           // Send, Recv: of the whole post, at its first instruction
};

struct Executor::BoundProgram {
  CompiledProgram compiled;
  std::vector<std::unique_ptr<Bound>> instructions;
  std::vector<Ticket> tickets;                    // of the current run
  std::vector<size_t> forward_end, backward_end;  // pieces, by micro-batch
  size_t next = 0;
  bool has_run = false;
  StepContext* context = nullptr;
};

}  // namespace trireme
