// Causal attention through LibTorch's fused kernels. FlashAttention: arXiv:2205.14135.
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <cmath>
#include <tuple>

#include "engine/kernels/checks.h"
#include "engine/kernels/cuda/attention.h"
#include "engine/kernels/kernels.h"

namespace trireme::kernels {
namespace {

// Views [micro, heads, sequence, head size] of the three parts of qkv.
AttentionInputs SplitHeads(const at::Tensor& qkv, const AttentionShape& shape) {
  const int64_t head_size = qkv.size(1) / 3 / shape.num_heads;
  const at::Tensor heads =
      qkv.view({shape.micro_batch_size, shape.sequence_length, 3, shape.num_heads, head_size}).permute({2, 0, 3, 1, 4});
  return {heads.select(0, 0), heads.select(0, 1), heads.select(0, 2)};
}

void CheckAttention(const at::Tensor& qkv, const AttentionShape& shape) {
  TRIREME_CHECK(shape.num_heads > 0 && qkv.dim() == 2 && qkv.size(1) % (3 * shape.num_heads) == 0,
                fmt::format("qkv is {} with {} heads", ShapeText(qkv), shape.num_heads));
  CheckShape(qkv, {shape.micro_batch_size * shape.sequence_length, qkv.size(1)}, "qkv");
}

void CheckCpu([[maybe_unused]] const at::Tensor& tensor) {
#ifndef TRIREME_HAS_CUDA
  TRIREME_CHECK(tensor.is_cpu(), "a program without GPU code got a tensor on " + tensor.device().str());
#endif
}

}  // namespace

void AttentionForward(const at::Tensor& qkv, const AttentionShape& shape, std::vector<at::Tensor>& pool) {
  CheckAttention(qkv, shape);
  CheckCpu(qkv);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const AttentionInputs in = SplitHeads(qkv, shape);
  pool.clear();
#ifdef TRIREME_HAS_CUDA
  if (qkv.is_cuda()) return CudaAttentionForward(in, pool);
#endif
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(in.query, in.key, in.value, 0.0, true);
  pool = {std::move(out), std::move(lse)};
}

at::Tensor AttentionOutput(const std::vector<at::Tensor>& pool) {
  TRIREME_CHECK(pool.size() >= 2, "AttentionForward has filled the pool");
  const at::Tensor& out =
      pool[0];  // [micro, heads, sequence, head size], laid out as [micro, sequence, heads, head size]
  const at::Tensor rows = out.transpose(1, 2);
  TRIREME_CHECK(rows.is_contiguous(), "the attention kernel's output is not laid out by tokens");
  return rows.view({out.size(0) * out.size(2), out.size(1) * out.size(3)});
}

void AttentionBackward(const at::Tensor& dout, const at::Tensor& qkv, const AttentionShape& shape,
                       const std::vector<at::Tensor>& pool, const at::Tensor& dqkv) {
  CheckAttention(qkv, shape);
  CheckAttention(dqkv, shape);
  CheckShape(dout, {qkv.size(0), qkv.size(1) / 3}, "dout");
  CheckCpu(qkv);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const AttentionInputs in = SplitHeads(qkv, shape), gradients = SplitHeads(dqkv, shape);
  const at::Tensor dout_heads =
      dout.view({shape.micro_batch_size, shape.sequence_length, shape.num_heads, dout.size(1) / shape.num_heads})
          .transpose(1, 2);
  std::tuple<at::Tensor, at::Tensor, at::Tensor> result;
#ifdef TRIREME_HAS_CUDA
  if (qkv.is_cuda()) {
    result = CudaAttentionBackward(dout_heads, in, pool);
  }
#endif
  if (qkv.is_cpu()) {
    result = at::_scaled_dot_product_flash_attention_for_cpu_backward(dout_heads, in.query, in.key, in.value, pool[0],
                                                                      pool[1], 0.0, true);
  }
  gradients.query.copy_(std::get<0>(result));
  gradients.key.copy_(std::get<1>(result));
  gradients.value.copy_(std::get<2>(result));
}

}  // namespace trireme::kernels
