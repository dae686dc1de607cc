// Checks of the optimizers' updates.
#include <ATen/core/Tensor.h>

#include "engine/kernels/backend.h"
#include "engine/kernels/checks.h"

namespace trireme::kernels {
namespace {

void CheckUpdate(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& weights,
                 const at::Tensor& state, const at::Tensor& learning_rates) {
  const int64_t count = master.numel();
  CheckState(state);
  CheckFlat(master, count, "master");
  CheckFlat(gradient, count, "gradient");
  TRIREME_CHECK(master.scalar_type() == at::kFloat || master.scalar_type() == at::kDouble,
                "master is " + ShapeText(master));
  TRIREME_CHECK(master.scalar_type() != at::kDouble || gradient.scalar_type() == at::kDouble,
                "gradient is " + ShapeText(gradient));
  TRIREME_CHECK(master.scalar_type() != at::kFloat || gradient.scalar_type() != at::kDouble,
                "gradient is " + ShapeText(gradient));
  if (weights.defined()) {
    CheckFlat(weights, count, "weights");
    TRIREME_CHECK((master.scalar_type() == at::kDouble) == (weights.scalar_type() == at::kDouble),
                  "weights are " + ShapeText(weights));
  }
  TRIREME_CHECK(learning_rates.dim() == 1 && learning_rates.numel() > 0 && learning_rates.is_contiguous(),
                ShapeText(learning_rates));
  CheckType(learning_rates, at::kDouble, "learning_rates");
  CheckSameDevice(master, {&gradient, &weights, &state, &learning_rates});
}

void CheckMoment(const at::Tensor& moment, const at::Tensor& master, const char* name) {
  CheckFlat(moment, master.numel(), name);
  CheckType(moment, master.scalar_type(), name);
  CheckSameDevice(master, {&moment});
}

void CheckBetas(const at::Tensor& betas, const at::Tensor& learning_rates, const at::Tensor& master) {
  CheckShape(betas, {learning_rates.numel(), 2}, "betas");
  CheckType(betas, at::kDouble, "betas");
  CheckSameDevice(master, {&betas});
}

void CheckSquares(const at::Tensor& squares, const at::Tensor& master) {
  CheckShape(squares, {2}, "squares");
  CheckType(squares, at::kDouble, "squares");
  CheckSameDevice(master, {&squares});
}

}  // namespace

void AdamUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                const at::Tensor& gradient, const at::Tensor& weights, const at::Tensor& state,
                const at::Tensor& learning_rates, const at::Tensor& betas, const AdamOptions& options) {
  CheckUpdate(master, gradient, weights, state, learning_rates);
  CheckMoment(exp_avg, master, "exp_avg");
  CheckMoment(exp_avg_sq, master, "exp_avg_sq");
  CheckBetas(betas, learning_rates, master);
  if (master.numel() == 0) return;
  TRIREME_RUN(master, AdamUpdate, master, exp_avg, exp_avg_sq, gradient, weights, state, learning_rates, betas,
              options);
}

void SgdUpdate(const at::Tensor& master, const at::Tensor& momentum_buffer, const at::Tensor& gradient,
               const at::Tensor& weights, const at::Tensor& state, const at::Tensor& learning_rates,
               const SgdOptions& options) {
  CheckUpdate(master, gradient, weights, state, learning_rates);
  TRIREME_CHECK(momentum_buffer.defined() || options.momentum == 0,
                fmt::format("momentum {} without a buffer", options.momentum));
  if (momentum_buffer.defined()) CheckMoment(momentum_buffer, master, "momentum_buffer");
  if (master.numel() == 0) return;
  TRIREME_RUN(master, SgdUpdate, master, momentum_buffer, gradient, weights, state, learning_rates, options);
}

void AdagradUpdate(const at::Tensor& master, const at::Tensor& sum, const at::Tensor& gradient,
                   const at::Tensor& weights, const at::Tensor& state, const at::Tensor& learning_rates,
                   const AdagradOptions& options) {
  CheckUpdate(master, gradient, weights, state, learning_rates);
  CheckMoment(sum, master, "sum");
  if (master.numel() == 0) return;
  TRIREME_RUN(master, AdagradUpdate, master, sum, gradient, weights, state, learning_rates, options);
}

void LionUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& gradient,
                const at::Tensor& weights, const at::Tensor& state, const at::Tensor& learning_rates,
                const at::Tensor& betas, const LionOptions& options) {
  CheckUpdate(master, gradient, weights, state, learning_rates);
  CheckMoment(exp_avg, master, "exp_avg");
  CheckBetas(betas, learning_rates, master);
  if (master.numel() == 0) return;
  TRIREME_RUN(master, LionUpdate, master, exp_avg, gradient, weights, state, learning_rates, betas, options);
}

void LambMoments(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                 const at::Tensor& gradient, const at::Tensor& squares, const at::Tensor& state,
                 const at::Tensor& learning_rates, const at::Tensor& betas, const LambOptions& options) {
  CheckUpdate(master, gradient, {}, state, learning_rates);
  CheckMoment(exp_avg, master, "exp_avg");
  CheckMoment(exp_avg_sq, master, "exp_avg_sq");
  CheckBetas(betas, learning_rates, master);
  if (squares.defined()) CheckSquares(squares, master);
  if (master.numel() == 0) return;
  TRIREME_RUN(master, LambMoments, master, exp_avg, exp_avg_sq, gradient, squares, state, learning_rates, betas,
              options);
}

void LambUpdate(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                const at::Tensor& weights, const at::Tensor& squares, const at::Tensor& state,
                const at::Tensor& learning_rates, const at::Tensor& betas, const LambOptions& options) {
  CheckUpdate(master, exp_avg, weights, state, learning_rates);
  CheckMoment(exp_avg, master, "exp_avg");
  CheckMoment(exp_avg_sq, master, "exp_avg_sq");
  CheckBetas(betas, learning_rates, master);
  CheckSquares(squares, master);
  if (master.numel() == 0) return;
  TRIREME_RUN(master, LambUpdate, master, exp_avg, exp_avg_sq, weights, squares, state, learning_rates, betas, options);
}

}  // namespace trireme::kernels
