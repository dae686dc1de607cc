// The choice among LibTorch's GPU attention kernels. All tensors [micro, heads, sequence, head size], strided; key and
// value may have fewer heads than query. Gradients of key and value come with either number of heads.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <vector>

#include "engine/kernels/attention_heads.h"

namespace trireme::kernels {

void CudaAttentionForward(const AttentionInputs& in, std::vector<at::Tensor>& pool);
std::tuple<at::Tensor, at::Tensor, at::Tensor> CudaAttentionBackward(const at::Tensor& dout, const AttentionInputs& in,
                                                                     const std::vector<at::Tensor>& pool);
// Without a causal mask; `mask` [rows of query, rows of key] is added to the scores. Returns the output.
at::Tensor CudaAttentionMasked(const AttentionInputs& in, const std::optional<at::Tensor>& mask);

}  // namespace trireme::kernels
