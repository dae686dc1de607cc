// What of the executor's work has the shape of one micro-batch: that of the plan, or where lengths differ that of the
// step's inputs.
#include <ATen/ops/empty.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/execute/bound_program.h"
#include "engine/execute/executor.h"
#include "engine/model/flat_view.h"

namespace trireme {
namespace {

// Of a whole buffer of ids, those of one micro-batch: int32 [rows, length + 1].
at::Tensor IdsOf(const at::Tensor& whole, const MicroBatchShape& shape) {
  return ViewOf(whole, 0, at::kInt, {shape.rows, shape.length + 1});
}

at::Tensor FirstRows(const at::Tensor& whole, int64_t rows) {
  return ViewOf(whole, 0, whole.scalar_type(), {rows, whole.size(1)});
}

}  // namespace

MicroBatchShape Executor::ShapeOf(const StepContext& step, int64_t micro_batch) const {
  const Plan& plan = *parts_.plan;
  if (plan.batch.is_dynamic()) return step.inputs.shapes[static_cast<size_t>(micro_batch)];
  const int64_t block = micro_batch * plan.topology.dp_size + parts_.state->dp_rank();
  return {plan.batch.micro_batch_size, plan.batch.sequence_length, block * plan.batch.micro_batch_size};
}

// A micro-batch has the first part of each buffer. Host work of about a microsecond, and none where the last one had
// the same shape.
void Executor::TakeShape(Bound& bound, const MicroBatchShape& shape) const {
  const Plan& plan = *parts_.plan;
  UnitArgs& args = bound.args;
  if (!plan.batch.is_dynamic() || (args.micro_batch_size == shape.rows && args.sequence_length == shape.length)) return;
  TRIREME_CHECK(shape.tokens() > 0 && shape.tokens() <= plan.batch.dynamic.max_tokens &&
                    shape.rows <= plan.batch.dynamic.max_rows && shape.length <= plan.batch.sequence_length,
                "a micro-batch as the plan allows it");
  args.micro_batch_size = shape.rows;
  args.sequence_length = shape.length;
  if (bound.whole.tokens.defined()) args.tokens = IdsOf(bound.whole.tokens, shape);
  const int64_t own_rows = shape.tokens() / (plan.sequence_parallel ? plan.topology.tp_size : 1);
  for (const auto& [whole, part] : {std::pair{&bound.whole.input, &args.input},
                                    {&bound.whole.output, &args.output},
                                    {&bound.whole.output_gradient, &args.output_gradient},
                                    {&bound.whole.input_gradient, &args.input_gradient}}) {
    if (whole->defined()) *part = FirstRows(*whole, own_rows);
  }
}

void Executor::RunLoad(const Bound& bound, StepContext& step, CommStream) {
  const int64_t micro_batch = bound.compiled->instruction.micro_batch;
  const bool dynamic = parts_.plan->batch.is_dynamic();
  const MicroBatchShape shape = ShapeOf(step, micro_batch);
  const at::Tensor tokens = dynamic ? IdsOf(bound.tokens, shape) : bound.tokens;
  if (!tokens.is_cuda()) {
    step.inputs.fill(micro_batch, tokens);
    return;
  }
  std::vector<at::Tensor>& staging = step.slot->host_tokens;
  while (static_cast<int64_t>(staging.size()) <= micro_batch)
    staging.push_back(at::empty(bound.tokens.sizes(), at::TensorOptions().dtype(at::kInt).pinned_memory(true)));
  const at::Tensor& whole = staging[static_cast<size_t>(micro_batch)];
  const at::Tensor host = dynamic ? IdsOf(whole, shape) : whole;
  step.inputs.fill(micro_batch, host);
  tokens.copy_(host, /*non_blocking=*/true);
}

// Samples are counted in the global batch, so that no layout changes a mask.
DropoutArgs Executor::DropoutOf(const StepContext& step, int64_t micro_batch) const {
  return {parts_.plan->hidden_dropout, parts_.dropout_seed, step.inputs.step, ShapeOf(step, micro_batch).first_sample};
}

// Both sides know the shape from the step's inputs: nothing is negotiated.
void Executor::RunTransfers(const Bound& bound, const StepContext& step, CommStream stream) {
  const Plan& plan = *parts_.plan;
  parts_.pp->GroupStart();
  for (const PostedTransfer& transfer : bound.transfers) {
    const int64_t tokens = ShapeOf(step, transfer.micro_batch).tokens();
    const at::Tensor tensor = FirstRows(transfer.tensor, tokens / (plan.sequence_parallel ? plan.topology.tp_size : 1));
    if (transfer.sends) {
      parts_.pp->Send(tensor, transfer.peer, stream);
    } else {
      parts_.pp->Recv(tensor, transfer.peer, stream);
    }
  }
  parts_.pp->GroupEnd();
}

}  // namespace trireme
