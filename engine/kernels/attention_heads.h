// Views of the heads of qkv, and key heads repeated for kernels that want as many as there are query heads.
#pragma once
#include <ATen/core/Tensor.h>

#include "engine/kernels/kernels.h"

namespace trireme::kernels {

// [micro, heads, sequence, head size], strided.
struct AttentionInputs {
  at::Tensor query, key, value;
};

inline AttentionInputs SplitHeads(const at::Tensor& qkv, const AttentionShape& shape) {
  const int64_t micro = shape.micro_batch_size, sequence = shape.sequence_length;
  if (shape.interleaved) {
    const at::Tensor heads = qkv.view({micro, sequence, shape.num_heads, 3, shape.head_size}).permute({3, 0, 2, 1, 4});
    return {heads.select(0, 0), heads.select(0, 1), heads.select(0, 2)};
  }
  const at::Tensor heads =
      qkv.view({micro, sequence, shape.num_heads + 2 * shape.num_kv_heads, shape.head_size}).transpose(1, 2);
  return {heads.narrow(1, 0, shape.num_heads), heads.narrow(1, shape.num_heads, shape.num_kv_heads),
          heads.narrow(1, shape.num_heads + shape.num_kv_heads, shape.num_kv_heads)};
}

// Head i of the result is head i / (num_heads / heads of the input); the input itself where the counts are equal.
inline at::Tensor RepeatHeads(const at::Tensor& heads, int64_t num_heads) {
  const int64_t micro = heads.size(0), kept = heads.size(1), sequence = heads.size(2), head_size = heads.size(3);
  if (kept == num_heads) return heads;
  return heads.unsqueeze(2)
      .expand({micro, kept, num_heads / kept, sequence, head_size})
      .reshape({micro, num_heads, sequence, head_size});
}

// The gradient of RepeatHeads, summed in fp32 (fp64) and rounded once.
inline at::Tensor SumRepeated(const at::Tensor& gradient, int64_t num_kv_heads) {
  if (gradient.size(1) == num_kv_heads) return gradient;
  return gradient.unflatten(1, {num_kv_heads, gradient.size(1) / num_kv_heads}).sum(2);
}

}  // namespace trireme::kernels
