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

void Updater::InitialiseMoments(const RankState& state) const {
  if (optimizer_.type != OptimizerType::kAdagrad) return;
  for (const int u : state.held_units()) state.moment(u, 0).fill_(optimizer_.initial_accumulator_value);
}

void Updater::Update(const RankState& state, int unit, const at::Tensor& step_state, const at::Tensor& made) const {
  const bool on_host = state.plan().OptimizerOnHost(unit);
  const Tables& tables = on_host ? host_ : device_;
  // On the host one pass makes masters and weights; but a skipped update writes neither. The device does not know at
  // this point whether it will skip.
  const bool casts = made.defined() && (!on_host || step_state.const_data_ptr<double>()[kSkip] != 0);
  const at::Tensor rounded = casts ? at::Tensor() : made.defined() ? made : Rounded(state, unit);
  const at::Tensor& gradient = on_host ? state.host_gradient(unit) : state.own_gradient(unit);
  const bool by_tensors = state.plan().trust_ratios;
  if (by_tensors) ApplyByTensors(state, unit, step_state, rounded);
  for (const DecayRun& run : by_tensors ? std::span<const DecayRun>() : state.decay_runs(unit)) {
    const auto cut = [&](const at::Tensor& flat) { return flat.narrow(0, run.begin, run.count); };
    Part part{cut(state.masters(unit)),
              cut(gradient),
              rounded.defined() ? cut(rounded) : at::Tensor(),
              {},
              run.decay ? optimizer_.weight_decay : 0};
    for (int k = 0; k < state.plan().moments_per_element; ++k) {
      part.moments[static_cast<size_t>(k)] = cut(state.moment(unit, k));
    }
    Apply(part, step_state, tables);
  }
  if (casts) kernels::CastCopy(state.masters(unit), made);
}

void Updater::Apply(const Part& part, const at::Tensor& step_state, const Tables& tables) const {
  const at::Tensor &first = part.moments[0], &second = part.moments[1], &rates = tables.learning_rates;
  switch (optimizer_.type) {
    case OptimizerType::kAdam:
    case OptimizerType::kAdamW:
      return kernels::AdamUpdate(
          part.master, first, second, part.gradient, part.weights, step_state, rates, tables.betas,
          {optimizer_.eps, part.decay, optimizer_.decoupled_weight_decay, optimizer_.bias_correction});
    case OptimizerType::kSgd:
      return kernels::SgdUpdate(part.master, first, part.gradient, part.weights, step_state, rates,
                                {optimizer_.momentum, optimizer_.dampening, optimizer_.nesterov, part.decay});
    case OptimizerType::kAdagrad:
      return kernels::AdagradUpdate(part.master, first, part.gradient, part.weights, step_state, rates,
                                    {optimizer_.eps, part.decay, optimizer_.lr_decay});
    case OptimizerType::kLion:
      return kernels::LionUpdate(part.master, first, part.gradient, part.weights, step_state, rates, tables.betas,
                                 {part.decay});
    case OptimizerType::kLamb:
      break;
  }
}

kernels::LambOptions Updater::LambOptionsOf(const TensorRun& run) const {
  return {.epsilon = optimizer_.eps,
          .weight_decay = run.decay ? optimizer_.weight_decay : 0,
          .bias_correction = optimizer_.bias_correction,
          .epsilon_inside_root = optimizer_.eps_inside_sqrt,
          .max_coefficient = optimizer_.max_coeff,
          .min_coefficient = optimizer_.min_coeff};
}

void Updater::UpdateNorms(const RankState& state, int unit) const {
  const at::Tensor& norms = state.update_norms(unit);
  norms.zero_();
  for (const TensorRun& run : state.tensor_runs(unit)) {
    const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, run.begin, run.count); };
    kernels::LambMoments(part(state.masters(unit)), part(state.moment(unit, 0)), part(state.moment(unit, 1)),
                         part(state.own_gradient(unit)), run.counted ? norms.select(0, run.tensor) : at::Tensor(),
                         state.step_state(), device_.learning_rates, device_.betas, LambOptionsOf(run));
  }
}

void Updater::ApplyByTensors(const RankState& state, int unit, const at::Tensor& step_state,
                             const at::Tensor& weights) const {
  for (const TensorRun& run : state.tensor_runs(unit)) {
    const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, run.begin, run.count); };
    kernels::LambUpdate(part(state.masters(unit)), part(state.moment(unit, 0)), part(state.moment(unit, 1)),
                        weights.defined() ? part(weights) : at::Tensor(),
                        state.update_norms(unit).select(0, run.tensor), step_state, device_.learning_rates,
                        device_.betas, LambOptionsOf(run));
  }
}

std::span<const char* const> MomentNames(const OptimizerConfig& optimizer) {
  static constexpr const char* kTwo[] = {"exp_avg", "exp_avg_sq"};
  static constexpr const char* kOne[] = {"exp_avg"};
  static constexpr const char* kSum[] = {"sum"};
  static constexpr const char* kMomentum[] = {"momentum_buffer"};
  switch (optimizer.type) {
    case OptimizerType::kAdam:
    case OptimizerType::kAdamW:
    case OptimizerType::kLamb:
      return kTwo;
    case OptimizerType::kAdagrad:
      return kSum;
    case OptimizerType::kLion:
      return kOne;
    case OptimizerType::kSgd:
      break;
  }
  if (optimizer.momentum != 0) return kMomentum;
  return {};
}

}  // namespace trireme
