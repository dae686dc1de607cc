// cuDNN, FlashAttention (arXiv:2307.08691), the memory-efficient kernel (arXiv:2112.05682), or plain operations where
// none of them can.
#include "engine/kernels/cuda/attention.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <limits>

namespace trireme::kernels {
namespace {

enum class Kernel { kCudnn, kFlash, kEfficient, kPlain };

int ComputeCapability(int device) {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess ? major : 0;
}

// The same answer in Forward and Backward: a function of type, shape, device and LibTorch's global switches.
Kernel KernelFor(const at::Tensor& query) {
  const int64_t sequence = query.size(2), head_size = query.size(3);
  if (query.scalar_type() == at::kDouble) return Kernel::kPlain;
  if (query.scalar_type() == at::kFloat) return head_size % 4 == 0 ? Kernel::kEfficient : Kernel::kPlain;
  if (head_size % 8 != 0 || head_size > 256) return Kernel::kPlain;
  // cuDNN's kernels are the faster ones on Hopper; its backward promises no order of sums.
  const bool cudnn = head_size <= 128 && sequence >= 128 && at::globalContext().userEnabledCuDNNSDP() &&
                     !at::globalContext().deterministicAlgorithms() && ComputeCapability(query.get_device()) >= 9;
  return cudnn ? Kernel::kCudnn : Kernel::kFlash;
}

// Kept tensors are all defined, so that who counts their bytes need not ask; an empty one stands for an undefined one.
at::Tensor Keep(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.defined() ? tensor : at::empty({0}, like.options());
}
at::Tensor Restore(const at::Tensor& tensor) { return tensor.numel() == 0 ? at::Tensor() : tensor; }

bool TakesGroups(Kernel kernel) { return kernel == Kernel::kCudnn || kernel == Kernel::kFlash; }

// Key heads as often as the kernel wants them. What is repeated here lives as long as the call.
AttentionInputs InputsFor(Kernel kernel, const AttentionInputs& in) {
  if (TakesGroups(kernel)) return in;
  return {in.query, RepeatHeads(in.key, in.query.size(1)), RepeatHeads(in.value, in.query.size(1))};
}

at::Tensor PlainScores(const at::Tensor& query, const at::Tensor& key) {
  return at::matmul(query, key.transpose(-1, -2)) / std::sqrt(static_cast<double>(query.size(3)));
}

at::Tensor CausalScores(const at::Tensor& query, const at::Tensor& key) {
  const int64_t sequence = query.size(2);
  const at::Tensor mask = at::ones({sequence, sequence}, query.options().dtype(at::kBool)).triu(1);
  return PlainScores(query, key).masked_fill(mask, -std::numeric_limits<double>::infinity());
}

at::Tensor Wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

std::tuple<at::Tensor, at::Tensor> PlainForward(const AttentionInputs& in) {
  const at::Tensor scores = CausalScores(Wide(in.query), Wide(in.key));
  const at::Tensor lse = at::logsumexp(scores, {-1});
  const at::Tensor out = at::matmul((scores - lse.unsqueeze(-1)).exp(), Wide(in.value));
  return {out.to(in.query.scalar_type()), lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> PlainBackward(const at::Tensor& dout, const AttentionInputs& in,
                                                             const at::Tensor& out, const at::Tensor& lse) {
  const at::Tensor query = Wide(in.query), key = Wide(in.key), gradient = Wide(dout);
  const at::Tensor weights = (CausalScores(query, key) - lse.unsqueeze(-1)).exp();
  const at::Tensor dweights = at::matmul(gradient, Wide(in.value).transpose(-1, -2));
  const at::Tensor row_dot = (gradient * Wide(out)).sum(-1, true);
  const at::Tensor dscores = weights * (dweights - row_dot) / std::sqrt(static_cast<double>(query.size(3)));
  return {at::matmul(dscores, key), at::matmul(dscores.transpose(-1, -2), query),
          at::matmul(weights.transpose(-1, -2), gradient)};
}

}  // namespace

void CudaAttentionForward(const AttentionInputs& inputs, std::vector<at::Tensor>& pool) {
  const Kernel kernel = KernelFor(inputs.query);
  const AttentionInputs in = InputsFor(kernel, inputs);
  switch (kernel) {
    case Kernel::kCudnn: {
      auto r =
          at::_scaled_dot_product_cudnn_attention(in.query, in.key, in.value, std::nullopt, true, 0.0, true, false);
      pool = {std::get<0>(r), std::get<1>(r), std::get<6>(r), std::get<7>(r), std::get<2>(r), std::get<3>(r)};
      break;
    }
    case Kernel::kFlash: {
      auto r = at::_scaled_dot_product_flash_attention(in.query, in.key, in.value, 0.0, true, false);
      pool = {std::get<0>(r), std::get<1>(r), std::get<6>(r), std::get<7>(r), std::get<2>(r), std::get<3>(r)};
      break;
    }
    case Kernel::kEfficient: {
      auto r = at::_scaled_dot_product_efficient_attention(in.query, in.key, in.value, std::nullopt, true, 0.0, true);
      pool = {std::get<0>(r), std::get<1>(r), std::get<2>(r), std::get<3>(r)};
      break;
    }
    case Kernel::kPlain: {
      auto [out, lse] = PlainForward(in);
      pool = {out, lse};
      break;
    }
  }
  for (at::Tensor& tensor : pool) tensor = Keep(tensor, in.query);
  // The next product reads [T, h]; most kernels already write that layout.
  if (!pool[0].transpose(1, 2).is_contiguous()) pool[0] = pool[0].transpose(1, 2).contiguous().transpose(1, 2);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> CudaAttentionBackward(const at::Tensor& dout,
                                                                     const AttentionInputs& inputs,
                                                                     const std::vector<at::Tensor>& pool) {
  const int64_t sequence = inputs.query.size(2);
  const Kernel kernel = KernelFor(inputs.query);
  const AttentionInputs in = InputsFor(kernel, inputs);
  switch (kernel) {
    case Kernel::kCudnn:
      return at::_scaled_dot_product_cudnn_attention_backward(dout, in.query, in.key, in.value, pool[0], pool[1],
                                                              Restore(pool[2]), Restore(pool[3]), {}, Restore(pool[4]),
                                                              Restore(pool[5]), sequence, sequence, 0.0, true);
    case Kernel::kFlash:
      return at::_scaled_dot_product_flash_attention_backward(dout, in.query, in.key, in.value, pool[0], pool[1],
                                                              Restore(pool[4]), Restore(pool[5]), sequence, sequence,
                                                              0.0, true, Restore(pool[2]), Restore(pool[3]));
    case Kernel::kEfficient: {
      auto r = at::_scaled_dot_product_efficient_attention_backward(dout, in.query, in.key, in.value, {}, pool[0],
                                                                    pool[1], Restore(pool[2]), Restore(pool[3]), 0.0,
                                                                    {true, true, true, false}, true);
      return {std::get<0>(r), std::get<1>(r), std::get<2>(r)};
    }
    case Kernel::kPlain:
      break;
  }
  return PlainBackward(dout, in, pool[0], pool[1]);
}

at::Tensor CudaAttentionMasked(const AttentionInputs& in, const std::optional<at::Tensor>& mask) {
  const Kernel kernel = mask.has_value() ? Kernel::kPlain : KernelFor(in.query);
  if (TakesGroups(kernel)) {
    return std::get<0>(at::_scaled_dot_product_flash_attention(in.query, in.key, in.value, 0.0, false, false));
  }
  if (kernel == Kernel::kEfficient) {
    return std::get<0>(
        at::_scaled_dot_product_efficient_attention(in.query, in.key, in.value, std::nullopt, false, 0.0, false));
  }
  at::Tensor scores = PlainScores(Wide(in.query), Wide(in.key));
  if (mask.has_value()) scores = scores + *mask;
  return at::matmul(scores.softmax(-1), Wide(in.value)).to(in.query.scalar_type());
}

}  // namespace trireme::kernels
