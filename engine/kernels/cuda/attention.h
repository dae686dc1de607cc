// The choice among LibTorch's GPU attention kernels. All tensors [micro, heads, sequence, head size], strided.
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

namespace trireme::kernels {

struct AttentionInputs {
  at::Tensor query, key, value;
};

void CudaAttentionForward(const AttentionInputs& in, std::vector<at::Tensor>& pool);
std::tuple<at::Tensor, at::Tensor, at::Tensor> CudaAttentionBackward(const at::Tensor& dout, const AttentionInputs& in,
                                                                     const std::vector<at::Tensor>& pool);

}  // namespace trireme::kernels
