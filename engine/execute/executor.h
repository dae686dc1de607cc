// Runs one rank's compiled Programs over one arena. One host thread calls it; nothing here waits for the device but
// Result.
//   Executor executor({.plan = plan, ...}, train, eval);
//   int64_t run = executor.Run(ProgramKind::kTrain, inputs);   StepResult result = executor.Result(run);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/execute/lanes.h"
#include "engine/execute/probe.h"
#include "engine/execute/tensor_lane.h"
#include "engine/execute/trace.h"
#include "engine/kernels/step_state.h"
#include "engine/model/tensor_parallel.h"
#include "engine/model/unit.h"
#include "engine/plan/batch_shape.h"
#include "engine/schedule/compile.h"
#include "engine/zero/rank_state.h"
#include "engine/zero/update.h"

namespace trireme {

// Fills `tokens` (int32 [micro, seq + 1] on the host, of the micro-batch's shape) with micro-batch m. Called on the
// lane `up`; keeps until the run has ended.
using TokenFill = std::function<void(int64_t micro_batch, const at::Tensor& tokens)>;

// A test's: element 0 of what a unit's pass makes of a micro-batch becomes `value`. Forward: its output, of the head
// the loss; backward: the gradient of its input, of the embedding its first parameter's.
struct InjectedValue {
  int unit = 0;
  int64_t micro_batch = 0;
  bool backward = false;
  double value = 0;
};

struct StepInputs {
  TokenFill fill;
  int64_t step = 0;  // names the step in traces and errors
  bool skip_non_finite = true;
  double loss_factor = 1;  // the loss times this is what backward sees; for tests of overflows
  std::vector<InjectedValue> injected = {};
  std::shared_ptr<Probe> probe = nullptr;  // Executor::Repeat sets it
  // This rank's micro-batches where lengths differ (BatchPlan::is_dynamic); equal on all ranks of one dp rank. Else
  // empty.
  std::vector<MicroBatchShape> shapes = {};
  double rate_factor = 1;  // of the learning rate in this step
};

// StepState as the host sees it after a run (step_state.h).
struct StepResult {
  double loss = 0, grad_norm = 0, tokens = 0;
  bool skipped = false;
  bool held = false;  // skipped, and every step since is void (kHeld): see Executor::Release
  int64_t applied_steps = 0, skipped_steps = 0;
  double loss_scale = 1;                            // of the next step
  double hysteresis = 0;                            // overflows from here until one lowers the dynamic loss scale
  double rate_factor = 1;                           // StepInputs::rate_factor
  bool scale_exhausted = false;                     // an overflow found the dynamic loss scale at its floor
  std::chrono::steady_clock::time_point completed;  // when the device had done it
  double eval_loss_sum = 0, eval_tokens = 0;        // of an evaluation program, over all ranks
};

struct ExecutorParts {
  const Plan* plan = nullptr;
  RankState* state = nullptr;
  const Updater* updater = nullptr;
  Communicator* world = nullptr;
  Communicator* dp = nullptr;   // may be the world's
  Communicator* pp = nullptr;   // null at pp 1
  Communicator* tp = nullptr;   // null at tp 1
  Communicator* tie = nullptr;  // null on ranks without a tied weight that lies on two stages
  double gradient_clipping = 0;
  LossScaling loss_scaling = {};
  bool holds_skips = false;  // StepStatsOptions
  uint64_t dropout_seed = 0;
  std::shared_ptr<Tracer> tracer;  // null: nothing is recorded
  // Called where an instruction runs (on the CPU in its lane's thread, else in the one that issues it), before it. May
  // be empty.
  std::function<void(const Instruction&, int64_t step)> before_instruction = {};
};

class Executor {
 public:
  // `units`: one a unit of the plan (MakeUnits). `train` and `eval` are compiled for `parts.plan` and verified by the
  // caller, as a sequence too: that the arena is free again when the next Program uses it is part of that proof.
  // Allocates arena and workspace, and binds every view once.
  Executor(const ExecutorParts& parts, std::vector<std::unique_ptr<Unit>> units, CompiledProgram train,
           CompiledProgram eval);
  ~Executor();

  // Issues a whole Program and returns its number; at most two runs are unfinished at a time.
  int64_t Run(ProgramKind kind, StepInputs inputs);
  // Waits for the run's StepState. Each run's result can be asked for until three later ones have started.
  StepResult Result(int64_t run);

  // The training Program piece by piece (DeepSpeed's forward, backward, step): forward of micro-batch i, its backward,
  // the step. ForwardPiece returns the mean loss of the micro-batch on this rank and waits for it.
  double ForwardPiece(StepInputs inputs, int64_t micro_batch);
  void BackwardPiece(int64_t micro_batch);
  int64_t StepPiece();

  // Makes a held step once more, up to its StepStats, and looks at every tensor on the way; nothing that training keeps
  // changes. All ranks call it together. Returns what this rank found first.
  std::optional<BadValue> Repeat(StepInputs inputs, double loss_scale);
  // Lets steps count again. What was issued since the held one was void: the caller runs it again.
  void Release();

  void Drain();
  void set_tracer(std::shared_ptr<Tracer> tracer) { parts_.tracer = std::move(tracer); }  // after Drain
  int64_t arena_bytes() const;
  const at::Tensor& arena() const { return arena_; }  // bytes; free for other use after Drain, until the next run
  int64_t workspace_bytes() const;
  int64_t host_arena_bytes() const;  // 0 where nothing is offloaded

  struct Bound;  // bound_program.h
  struct BoundProgram;
  struct ReducedUnit;
  struct PostedTransfer;
  struct Copy;
  struct Slot;

 private:
  std::unique_ptr<BoundProgram> Bind(CompiledProgram program);
  void BindUnit(const CompiledInstruction& source, Bound& bound);
  void BindTransfer(const CompiledInstruction& source, BoundProgram& program);
  void BindReduce(const CompiledInstruction& source, Bound& bound);
  void BindCopy(const CompiledInstruction& source, Bound& bound) const;
  Saved* SavedOf(const BufferUse& use);
  at::Tensor View(const BufferUse& use) const;
  at::Tensor OwnView(const BufferUse& use) const;  // of the rank's own part
  int64_t StartRun(BoundProgram& program, StepInputs inputs);
  void Issue(BoundProgram& program, size_t end);
  LaneWaits WaitsOf(const BoundProgram& program, const CompiledInstruction& instruction) const;
  void NoteUses(const CompiledInstruction& instruction, Ticket ticket);

  void RunInstruction(const LaneWork& work, CommStream stream);
  void RunLoad(const Bound& bound, StepContext& step, CommStream stream);
  MicroBatchShape ShapeOf(const StepContext& step, int64_t micro_batch) const;
  void TakeShape(Bound& bound, const MicroBatchShape& shape) const;
  DropoutArgs DropoutOf(const StepContext& step, int64_t micro_batch) const;
  void RunUnit(Bound& bound, const StepContext& step);
  void RunUpdate(const Bound& bound, const StepContext& step);
  void RunCopies(const Bound& bound, StepContext& step, CommStream stream);
  void Inject(const Instruction& instruction, const UnitArgs& args, const StepInputs& inputs) const;
  void LookAtReduced(const Bound& bound, Probe& probe) const;
  void RunGather(const Bound& bound, CommStream stream);
  void RunReduce(const Bound& bound, CommStream stream);
  void RunReduceNorms(const Instruction& instruction, CommStream stream);
  void RunStepStats(const Bound& bound, StepContext& step, CommStream stream);
  void LookAtCopies() const;
  void RunTpReduce(const Bound& bound);
  void RunTransfers(const Bound& bound, const StepContext& step, CommStream stream);
  std::vector<Communicator*> Groups() const;
  void Abort();
  void CheckHealth();
  void ZeroGaps(int unit, const at::Tensor& gradients) const;

  ExecutorParts parts_;
  std::vector<std::unique_ptr<Unit>> units_;
  TensorLaneTrace tensor_trace_;
  std::unique_ptr<TensorParallel> tensor_parallel_;             // null at tp 1
  std::vector<std::vector<std::pair<int64_t, int64_t>>> gaps_;  // of each unit's flat buffer: begin, count
  at::Tensor arena_, host_arena_, workspace_;
  at::Tensor of_copies_;  // a StepState apart, for LookAtCopies
  std::map<std::pair<BufferKey, int64_t>, std::unique_ptr<Saved>>
      saved_;  // by key and offset: one a life of the buffer
  std::unique_ptr<BoundProgram> train_, eval_;
  std::vector<std::unique_ptr<Slot>> slots_;  // a ring of runs

  // Last uses of each persistent buffer on each lane, by ticket: what the next Program waits for.
  struct LastUse {
    LaneWaits any{}, write{};
  };
  std::vector<LastUse> last_use_;

  int64_t next_run_ = 0;
  int exceptions_at_start_ = std::uncaught_exceptions();
  double loss_before_ = 0, tokens_before_ = 0;
  std::unique_ptr<Lanes> lanes_;  // last member: its threads end before the rest goes
};

}  // namespace trireme
