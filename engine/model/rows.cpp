#include "engine/model/rows.h"

#include "engine/model/tensor_parallel.h"
#include "engine/model/units.h"

namespace trireme {

int64_t OwnRows(const UnitArgs& args) { return args.sequence_parallel ? Tokens(args) / args.tp->size() : Tokens(args); }

int64_t FirstOwnRow(const UnitArgs& args) { return args.sequence_parallel ? args.tp->rank() * OwnRows(args) : 0; }

bool AddsOnce(const UnitArgs& args) { return args.tp == nullptr || args.tp->rank() == 0; }

at::Tensor OwnPart(const UnitArgs& args, const at::Tensor& all) {
  if (!args.sequence_parallel) return all;
  const int64_t row_bytes = all.size(1) * static_cast<int64_t>(all.element_size());
  return ViewOf(all, FirstOwnRow(args) * row_bytes, all.scalar_type(), {OwnRows(args), all.size(1)});
}

WholeRows::WholeRows(const UnitArgs& args, Workspace& workspace, at::ScalarType type, int64_t width) {
  if (!args.sequence_parallel) return;
  gathered_ = workspace.Take(type, {Tokens(args), width});
  partial_ = workspace.Take(type, {Tokens(args), width});
}

at::Tensor WholeRows::Gather(const UnitArgs& args, const at::Tensor& own) const {
  StartGather(args, own);
  return FinishGather(args, own);
}

void WholeRows::StartGather(const UnitArgs& args, const at::Tensor& own) const {
  if (args.sequence_parallel) args.tp->AllGather(own, gathered_);
}

at::Tensor WholeRows::FinishGather(const UnitArgs& args, const at::Tensor& own) const {
  if (!args.sequence_parallel) return own;
  args.tp->Wait();
  return gathered_;
}

void WholeRows::StartSum(const UnitArgs& args, const at::Tensor& own) const {
  if (args.tp == nullptr) return;
  if (args.sequence_parallel) {
    args.tp->ReduceScatter(partial_, own);
  } else {
    args.tp->AllReduce(own);
  }
}

void FinishSum(const UnitArgs& args) {
  if (args.tp != nullptr) args.tp->Wait();
}

}  // namespace trireme
