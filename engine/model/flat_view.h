// Tensors over parts of flat buffers, made without a dispatch: about 0.2 microseconds each.
//   at::Tensor weight = ViewOf(flat, segment.begin * SizeOf(dtype), at::kFloat, {out, in});
#pragma once
#include <ATen/core/Tensor.h>

#include "engine/kernels/scalar_type.h"

namespace trireme {

// A contiguous view of `shape` at byte_offset from the first element of `buffer` (contiguous, any type). Shares its
// storage; no autograd. Bounds and alignment are checked (TRIREME_CHECK).
at::Tensor ViewOf(const at::Tensor& buffer, int64_t byte_offset, at::ScalarType type, at::IntArrayRef shape);

// Hands out consecutive parts of a uint8 buffer, each at a multiple of 256 bytes.
class Workspace {
 public:
  explicit Workspace(const at::Tensor& bytes) : bytes_(bytes) {}
  at::Tensor Take(at::ScalarType type, at::IntArrayRef shape);
  at::Tensor Rest() const;  // uint8, what is left; {} if nothing is

 private:
  at::Tensor bytes_;
  int64_t used_ = 0;
};

}  // namespace trireme
