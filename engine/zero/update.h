// The optimizer step of one unit on this rank's own elements (keys "optimizer", "scheduler"). Enqueued like a kernel;
// predicated on the device by StepState, so that a skipped step needs no branch here.
//   Updater updater(config, train_iters, state);  updater.Update(state, unit);
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "engine/kernels/kernels.h"
#include "engine/optim/lr_schedule.h"
#include "engine/zero/rank_state.h"
#include "parsers/config.h"

namespace trireme {

class Updater {
 public:
  // Tables of learning rates and betas for updates 0 .. num_updates - 1 go to the device once (and stay on the host for
  // what is offloaded); a later update uses the last row.
  Updater(const OptimizerConfig& optimizer, const SchedulerConfig& scheduler, int64_t num_updates, at::Device device);

  // Fills the moments of a rank that starts: zeros, but for Adagrad's initial_accumulator_value.
  void InitialiseMoments(const RankState& state) const;
  // `step_state`: the device's, or the host's copy where the unit's optimizer is offloaded. `made`: own weights in the
  // compute type for the place of the weights, where that is another than the optimizer's; undefined: the weights are
  // written themselves. It is whole even if the step is skipped.
  void Update(const RankState& state, int unit, const at::Tensor& step_state, const at::Tensor& made = {}) const;
  // Lamb, before Update: moments, and RankState::update_norms out of this rank's part of each tensor.
  void UpdateNorms(const RankState& state, int unit) const;
  // Rates of update number `applied` (0: the first).
  UpdateRates RatesAt(int64_t applied) const { return schedule_.At(applied); }

 private:
  struct Tables {
    at::Tensor learning_rates, betas;
  };
  // What one call of a rule works on: a run of a unit's own elements.
  struct Part {
    at::Tensor master, gradient, weights;
    std::array<at::Tensor, 2> moments;
    double decay = 0;
  };
  void Apply(const Part& part, const at::Tensor& step_state, const Tables& tables) const;
  void ApplyByTensors(const RankState& state, int unit, const at::Tensor& step_state, const at::Tensor& weights) const;
  kernels::LambOptions LambOptionsOf(const TensorRun& run) const;

  OptimizerConfig optimizer_;
  LrSchedule schedule_;
  Tables device_, host_;
};

// Moments that the optimizer keeps, by their names in checkpoints: "exp_avg", "exp_avg_sq"; "exp_avg"; "sum";
// "momentum_buffer"; none.
std::span<const char* const> MomentNames(const OptimizerConfig& optimizer);

}  // namespace trireme
