// Collectives inside a unit, over the ranks that split its matrices (arXiv:1909.08053; sequence parallel:
// arXiv:2205.05198).
//   args.tp->ReduceScatter(partial, shard);  ... products that need neither ...  args.tp->Wait();
#pragma once
#include <ATen/core/Tensor.h>

#include "engine/comm/communicator.h"

namespace trireme {

// One rank's end. An operation starts when what the compute lane has issued before it is done, and runs beside what is
// issued after it: until Wait, nothing may touch its tensors. Operations run in the order of their calls, which is the
// same on every rank. Types travel as they are.
class TensorParallel {
 public:
  virtual ~TensorParallel() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void AllReduce(const at::Tensor& inout, ReduceOp op = ReduceOp::kSum) = 0;
  virtual void AllGather(const at::Tensor& in, const at::Tensor& out) = 0;      // in: [n], out: [size * n] elements
  virtual void ReduceScatter(const at::Tensor& in, const at::Tensor& out) = 0;  // in: [size * n], out: [n]; sum
  virtual void Wait() = 0;  // what the compute lane issues next follows everything started so far
};

}  // namespace trireme
