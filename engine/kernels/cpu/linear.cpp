// Matrix products on the CPU: ATen's (oneDNN, MKL or OpenBLAS as LibTorch was built).
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <fmt/core.h>

#include "engine/kernels/backend.h"
#include "engine/kernels/cpu/dispatch.h"

namespace trireme::kernels {

template <>
void Backend<CpuDevice>::LinearForward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                       const at::Tensor& residual, const at::Tensor& y) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor out = y;
  if (bias.defined()) {
    at::addmm_out(out, bias, x, weight.t());
  } else {
    at::mm_out(out, x, weight.t());
  }
  if (residual.defined()) AddInto(residual.view(-1), y.view(-1));
}

template <>
void Backend<CpuDevice>::LinearBackwardInput(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& dx) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor out = dx;
  at::mm_out(out, dy, weight);
}

template <>
void Backend<CpuDevice>::LinearBackwardWeight(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dweight,
                                              bool add, const at::Tensor& workspace) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const int64_t out = dweight.size(0), in = dweight.size(1);
  if (dweight.scalar_type() == dy.scalar_type()) {
    at::Tensor target = dweight;
    if (add) {
      at::addmm_out(target, target, dy.t(), x);
    } else {
      at::mm_out(target, dy.t(), x);
    }
    return;
  }
  // ATen has no product of 16-bit matrices into fp32 here.
  const int64_t row_bytes = in * static_cast<int64_t>(dy.element_size());
  const int64_t held_rows = workspace.defined() ? std::min(out, workspace.numel() / row_bytes) : 0;
  TRIREME_CHECK(held_rows > 0, fmt::format("a workspace of at least {} bytes", row_bytes));
  const at::Tensor products =
      workspace.narrow(0, 0, held_rows * row_bytes).view(dy.scalar_type()).view({held_rows, in});
  for (int64_t row = 0; row < out; row += held_rows) {
    const int64_t count = std::min(held_rows, out - row);
    at::Tensor product = products.narrow(0, 0, count);
    at::mm_out(product, dy.narrow(1, row, count).t(), x);
    const at::Tensor target = dweight.narrow(0, row, count).view(-1);
    if (add) {
      AddInto(product.view(-1), target);
    } else {
      CastCopy(product.view(-1), target);
    }
  }
}

}  // namespace trireme::kernels
