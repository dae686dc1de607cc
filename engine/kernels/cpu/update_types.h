// Types and table rows of the updates. For cpu/update.cpp and cpu/lamb.cpp.
#pragma once
#include "engine/kernels/cpu/dispatch.h"
#include "engine/kernels/step_state.h"

namespace trireme::kernels {

// f(M{}, G{}, W{}): types of master, gradient and weights (the master's where there are none).
template <typename F>
void ForUpdateTypes(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& weights, F&& f) {
  if (master.scalar_type() == at::kDouble) return f(double{}, double{}, double{});
  auto narrow_or_float = [](at::ScalarType type, auto&& with) {
    if (type == at::kBFloat16) return with(BFloat16{});
    if (type == at::kHalf) return with(Float16{});
    with(float{});
  };
  narrow_or_float(gradient.scalar_type(), [&](auto g) {
    narrow_or_float(weights.defined() ? weights.scalar_type() : at::kFloat, [&](auto w) { f(float{}, g, w); });
  });
}

inline int64_t TableRow(const double* state, const at::Tensor& table) {
  return std::clamp<int64_t>(static_cast<int64_t>(state[kAppliedSteps]) - 1, 0, table.numel() - 1);
}

}  // namespace trireme::kernels
