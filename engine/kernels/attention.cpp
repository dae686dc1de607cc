// Causal attention through LibTorch's fused kernels. FlashAttention: arXiv:2205.14135.
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/full.h>

#include <limits>
#include <optional>
#include <tuple>

#include "engine/kernels/attention_heads.h"
#include "engine/kernels/checks.h"
#include "engine/kernels/cuda/attention.h"
#include "engine/kernels/kernels.h"

namespace trireme::kernels {
namespace {

void CheckCpu([[maybe_unused]] const at::Tensor& tensor) {
#ifndef TRIREME_HAS_CUDA
  TRIREME_CHECK(tensor.is_cpu(), "a program without GPU code got a tensor on " + tensor.device().str());
#endif
}

// -inf where a new query may not look, [sequence, past + sequence]; none for a single query, which sees everything.
std::optional<at::Tensor> FutureMask(const at::Tensor& query, int64_t sequence, int64_t past) {
  if (sequence == 1) return std::nullopt;
  return at::full({sequence, past + sequence}, -std::numeric_limits<double>::infinity(), query.options())
      .triu(past + 1);
}

}  // namespace

void AttentionForward(const at::Tensor& qkv, const AttentionShape& shape, std::vector<at::Tensor>& pool) {
  CheckAttentionShape(qkv, shape, "qkv");
  CheckCpu(qkv);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const AttentionInputs in = SplitHeads(qkv, shape);
  pool.clear();
#ifdef TRIREME_HAS_CUDA
  if (qkv.is_cuda()) return CudaAttentionForward(in, pool);
#endif
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(in.query, RepeatHeads(in.key, shape.num_heads),
                                                                    RepeatHeads(in.value, shape.num_heads), 0.0, true);
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
  CheckAttentionShape(qkv, shape, "qkv");
  CheckAttentionShape(dqkv, shape, "dqkv");
  CheckShape(dout, {shape.tokens(), shape.query_width()}, "dout");
  CheckCpu(qkv);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const AttentionInputs in = SplitHeads(qkv, shape), gradients = SplitHeads(dqkv, shape);
  const at::Tensor dout_heads =
      dout.view({shape.micro_batch_size, shape.sequence_length, shape.num_heads, shape.head_size}).transpose(1, 2);
  std::tuple<at::Tensor, at::Tensor, at::Tensor> result;
#ifdef TRIREME_HAS_CUDA
  if (qkv.is_cuda()) {
    result = CudaAttentionBackward(dout_heads, in, pool);
  }
#endif
  if (qkv.is_cpu()) {
    result = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        dout_heads, in.query, RepeatHeads(in.key, shape.num_heads), RepeatHeads(in.value, shape.num_heads), pool[0],
        pool[1], 0.0, true);
  }
  gradients.query.copy_(std::get<0>(result));
  gradients.key.copy_(SumRepeated(std::get<1>(result), shape.num_kv_heads));
  gradients.value.copy_(SumRepeated(std::get<2>(result), shape.num_kv_heads));
}

void AttentionDecode(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& keys,
                     const at::Tensor& values, int64_t past, const at::Tensor& out) {
  CheckAttentionShape(qkv, shape, "qkv");
  CheckShape(out, {shape.tokens(), shape.query_width()}, "out");
  const int64_t micro = shape.micro_batch_size, sequence = shape.sequence_length, kv_heads = shape.num_kv_heads;
  const int64_t groups = shape.num_heads / kv_heads, total = past + sequence;
  for (const at::Tensor* cache : {&keys, &values}) {
    CheckShape(*cache, {micro, kv_heads, keys.size(2), shape.head_size}, "keys or values");
    CheckType(*cache, qkv.scalar_type(), "keys or values");
  }
  TRIREME_CHECK(past >= 0 && total <= keys.size(2),
                fmt::format("{}+{} positions in a cache of {}", past, sequence, keys.size(2)));
  CheckSameDevice(qkv, {&keys, &values, &out});
  CheckCpu(qkv);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const AttentionInputs in = SplitHeads(qkv, shape);
  keys.narrow(2, past, sequence).copy_(in.key);
  values.narrow(2, past, sequence).copy_(in.value);
  if (past == 0 && sequence > 1) {  // a prompt: causal, without a mask of sequence^2
    std::vector<at::Tensor> pool;
    AttentionForward(qkv, shape, pool);
    out.copy_(AttentionOutput(pool));
    return;
  }
  // The query heads of one key head become further rows of it: nothing is repeated.
  const AttentionInputs cached{in.query.reshape({micro, kv_heads, groups * sequence, shape.head_size}),
                               keys.narrow(2, 0, total), values.narrow(2, 0, total)};
  std::optional<at::Tensor> mask = FutureMask(qkv, sequence, past);
  if (mask.has_value()) mask = mask->repeat({groups, 1});
  at::Tensor attended;
#ifdef TRIREME_HAS_CUDA
  if (qkv.is_cuda()) attended = CudaAttentionMasked(cached, mask);
#endif
  if (qkv.is_cpu()) {
    attended = std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(cached.query, cached.key, cached.value, 0.0, false, mask));
  }
  out.view({micro, sequence, shape.num_heads, shape.head_size})
      .copy_(attended.reshape({micro, shape.num_heads, sequence, shape.head_size}).transpose(1, 2));
}

}  // namespace trireme::kernels
