// Learning rate and betas of every update, as DeepSpeed's schedulers give them (keys "scheduler" and "optimizer"). No
// LibTorch.
//   LrSchedule schedule(config.scheduler, config.optimizer);  double lr = schedule.At(0).lr;   // the first update's
// A scheduler moves with applied updates only; update a (counted from 0) uses DeepSpeed's last_batch_iteration k = a -
// 1, since construction writes the value for k = -1.
#pragma once
#include <cstdint>

#include "parsers/config.h"

namespace trireme {

struct UpdateRates {
  double lr = 0;
  double beta1 = 0, beta2 = 0;  // OneCycle with cycle_momentum moves them; SGD has its momentum in beta1
};

// What a step's learning rate is multiplied by when its batch has another size than the rate is meant for
// (dynamic_batching.lr_scaling_method): batch / base, its root, or 1.
double RateFactor(RateScaling method, int64_t batch_size, int64_t base_batch_size);

class LrSchedule {
 public:
  LrSchedule(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer);
  UpdateRates At(int64_t applied_updates) const;

 private:
  double Warmup(int64_t k) const;  // gamma of WarmupLR: 0 .. 1 while k < warm-up length
  double WarmupFamily(int64_t k) const;
  double Cosine(int64_t k) const;
  double RangeTest(int64_t k) const;
  UpdateRates OneCycle(int64_t k) const;

  SchedulerConfig scheduler_;
  OptimizerConfig optimizer_;
};

}  // namespace trireme
