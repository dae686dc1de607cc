// How a unit whose matrices are split over tp ranks meets the others: the rows of the residual stream that a rank has,
// sums of partial products, and the whole rows that a product reads.
//   T: tokens of the micro-batch. Own rows: all T, or T / tp of them under sequence parallelism.
#pragma once
#include <ATen/core/Tensor.h>

#include "engine/model/flat_view.h"
#include "engine/model/unit.h"

namespace trireme {

int64_t OwnRows(const UnitArgs& args);
int64_t FirstOwnRow(const UnitArgs& args);  // of the micro-batch

// Biases and residuals join a sum of partial products once: on the first tp rank.
bool AddsOnce(const UnitArgs& args);

// Own rows of [T, width].
at::Tensor OwnPart(const UnitArgs& args, const at::Tensor& all);

// Whole rows [T, width] that products read and write where a rank has only its own; undefined elsewhere.
class WholeRows {
 public:
  WholeRows(const UnitArgs& args, Workspace& workspace, at::ScalarType type, int64_t width);

  // All rows of `own`: itself where they are all here. Valid until the next call. In two halves where products that
  // need neither run under it; the second comes before the next StartSum.
  at::Tensor Gather(const UnitArgs& args, const at::Tensor& own) const;
  void StartGather(const UnitArgs& args, const at::Tensor& own) const;
  at::Tensor FinishGather(const UnitArgs& args, const at::Tensor& own) const;
  // Where a product writes what Sum shall make `own` of.
  const at::Tensor& PartialOf(const at::Tensor& own) const { return partial_.defined() ? partial_ : own; }
  // own = its rows of the sum of all ranks' PartialOf(own): begun here, there after FinishSum.
  void StartSum(const UnitArgs& args, const at::Tensor& own) const;

 private:
  at::Tensor gathered_, partial_;
};

void FinishSum(const UnitArgs& args);  // waits where there was a sum to wait for

}  // namespace trireme
