#include "engine/zero/update.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "engine/kernels/kernels.h"

namespace trireme {
namespace {

// The weights that go with masters of their own, beside them.
at::Tensor Rounded(const RankState& state, int unit) {
  return state.plan().HasMaster(unit) ? state.own_weights(unit) : at::Tensor();
}

}  // namespace

Updater::Updater(const OptimizerConfig& optimizer, const SchedulerConfig& scheduler, int64_t num_updates,
                 at::Device device)
    : optimizer_(optimizer), schedule_(scheduler, optimizer) {
  const int64_t rows = std::max<int64_t>(1, num_updates);
  at::Tensor rates = at::empty({rows}, at::kDouble), betas = at::empty({rows, 2}, at::kDouble);
  for (int64_t row = 0; row < rows; ++row) {
    const UpdateRates at_row = schedule_.At(row);
    rates.mutable_data_ptr<double>()[row] = at_row.lr;
    betas.mutable_data_ptr<double>()[2 * row] = at_row.beta1;
    betas.mutable_data_ptr<double>()[2 * row + 1] = at_row.beta2;
  }
  host_ = {rates, betas};
  device_ = {rates.to(device), betas.to(device)};
}

void Updater::Update(const RankState& state, int unit, const at::Tensor& step_state, const at::Tensor& made) const {
  const bool on_host = state.plan().OptimizerOnHost(unit);
  const Tables& tables = on_host ? host_ : device_;
  // On the host one pass makes masters and weights; but a skipped update writes neither. The device does not know at
  // this point whether it will skip.
  const bool casts = made.defined() && (!on_host || step_state.const_data_ptr<double>()[kSkip] != 0);
  const at::Tensor rounded = casts ? at::Tensor() : made.defined() ? made : Rounded(state, unit);
  const at::Tensor& gradient = on_host ? state.host_gradient(unit) : state.own_gradient(unit);
  for (const DecayRun& run : state.decay_runs(unit)) {
    const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, run.begin, run.count); };
    const double decay = run.decay ? optimizer_.weight_decay : 0;
    const at::Tensor weights = rounded.defined() ? part(rounded) : at::Tensor();
    if (optimizer_.type == OptimizerType::kSgd) {
      const at::Tensor momentum = optimizer_.momentum != 0 ? part(state.moment(unit, 0)) : at::Tensor();
      kernels::SgdUpdate(part(state.masters(unit)), momentum, part(gradient), weights, step_state,
                         tables.learning_rates,
                         {optimizer_.momentum, optimizer_.dampening, optimizer_.nesterov, decay});
    } else {
      kernels::AdamUpdate(part(state.masters(unit)), part(state.moment(unit, 0)), part(state.moment(unit, 1)),
                          part(gradient), weights, step_state, tables.learning_rates, tables.betas,
                          {optimizer_.eps, decay, optimizer_.decoupled_weight_decay, optimizer_.bias_correction});
    }
  }
  if (casts) kernels::CastCopy(state.masters(unit), made);
}

std::span<const char* const> MomentNames(const OptimizerConfig& optimizer) {
  static constexpr const char* kAdam[] = {"exp_avg", "exp_avg_sq"};
  static constexpr const char* kMomentum[] = {"momentum_buffer"};
  if (optimizer.type != OptimizerType::kSgd) return kAdam;
  if (optimizer.momentum != 0) return kMomentum;
  return {};
}

}  // namespace trireme
