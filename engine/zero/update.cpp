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
  if (state.file(unit) != nullptr) return UpdateOnDisk(state, unit, step_state, made);
  const bool on_host = state.plan().OptimizerOnHost(unit);
  const Tables& tables = on_host ? host_ : device_;
  // On the host one pass makes masters and weights; but a skipped update writes neither. The device does not know at
  // this point whether it will skip.
  const bool casts = made.defined() && (!on_host || step_state.const_data_ptr<double>()[kSkip] != 0);
  const at::Tensor rounded = casts ? at::Tensor() : made.defined() ? made : Rounded(state, unit);
  const at::Tensor& gradient = on_host ? state.host_gradient(unit) : state.own_gradient(unit);
  for (const DecayRun& run : state.decay_runs(unit)) {
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

// The same, chunk by chunk: what does not lie in the file is cut to the chunk.
void Updater::UpdateOnDisk(const RankState& state, int unit, const at::Tensor& step_state,
                           const at::Tensor& made) const {
  const bool skip = step_state.const_data_ptr<double>()[kSkip] != 0, has_master = state.OnDisk(unit, 0);
  if (skip && !made.defined()) return;
  const at::Tensor rounded = made.defined() ? made : Rounded(state, unit);
  state.file(unit)->Stream(unit, /*writes=*/!skip, [&](int64_t first, std::span<const at::Tensor> states) {
    const int64_t end = first + states.front().numel();
    if (skip) return kernels::CastCopy(states.front(), made.narrow(0, first, end - first));
    for (const DecayRun& run : state.decay_runs(unit)) {
      const int64_t begin = std::max(run.begin, first), count = std::min(run.begin + run.count, end) - begin;
      if (count <= 0) continue;
      const auto cut = [&](const at::Tensor& flat) { return flat.narrow(0, begin, count); };
      const auto of_chunk = [&](size_t at) { return states[at].narrow(0, begin - first, count); };
      Part part{has_master ? of_chunk(0) : cut(state.masters(unit)),
                cut(state.host_gradient(unit)),
                rounded.defined() ? cut(rounded) : at::Tensor(),
                {},
                run.decay ? optimizer_.weight_decay : 0};
      const size_t masters = has_master ? 1 : 0;
      for (size_t k = 0; k + masters < states.size(); ++k) part.moments[k] = of_chunk(k + masters);
      Apply(part, step_state, host_);
    }
  });
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
  }
}

std::span<const char* const> MomentNames(const OptimizerConfig& optimizer) {
  static constexpr const char* kAdam[] = {"exp_avg", "exp_avg_sq"};
  static constexpr const char* kMomentum[] = {"momentum_buffer"};
  if (optimizer.type != OptimizerType::kSgd) return kAdam;
  if (optimizer.momentum != 0) return kMomentum;
  return {};
}

}  // namespace trireme
