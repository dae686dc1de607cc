#include "engine/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme {
namespace {

int64_t WarmupLength(const SchedulerConfig& s) { return std::max<int64_t>(2, s.warmup_num_steps); }

}  // namespace

LrSchedule::LrSchedule(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer)
    : scheduler_(scheduler), optimizer_(optimizer) {}

double LrSchedule::Warmup(int64_t k) const {
  const double n = static_cast<double>(WarmupLength(scheduler_));
  if (scheduler_.warmup_type == WarmupType::kLinear) return static_cast<double>(k) / n;
  // DeepSpeed multiplies by a stored reciprocal; the same order of operations gives the same last bit.
  return (1.0 / std::log(n)) * std::log(static_cast<double>(k + 1));
}

double LrSchedule::WarmupFamily(int64_t k) const {
  const double low = scheduler_.warmup_min_lr, delta = scheduler_.warmup_max_lr - low;
  if (k < 0) return low;
  const int64_t n = WarmupLength(scheduler_);
  if (k < n) return low + delta * Warmup(k);
  if (scheduler_.type == SchedulerType::kWarmupLR) return low + delta * 1.0;
  const double total = static_cast<double>(scheduler_.total_num_steps);
  const double gamma = std::max(0.0, (total - static_cast<double>(k)) / std::max(1.0, total - static_cast<double>(n)));
  return low + delta * gamma;
}

double LrSchedule::Cosine(int64_t k) const {
  if (k < 0) return 0;
  const int64_t n = WarmupLength(scheduler_);
  const double base = optimizer_.lr;
  if (k < n) {
    const double ratio = scheduler_.warmup_min_ratio;
    return base * (ratio + (1.0 - ratio) * Warmup(k));
  }
  const double real_last = static_cast<double>(k - n + 1),
               real_total = static_cast<double>(scheduler_.total_num_steps - n);
  const double progress = std::min(1.0, real_last / std::max(1.0, real_total));
  const double delta = 1.0 - scheduler_.cos_min_ratio;
  return base * std::max(0.0, scheduler_.cos_min_ratio + delta * (1.0 + std::cos(std::numbers::pi * progress)) / 2.0);
}

double LrSchedule::RangeTest(int64_t k) const {
  double interval = static_cast<double>(k + 1) / static_cast<double>(scheduler_.lr_range_test_step_size);
  if (scheduler_.lr_range_test_staircase) interval = std::floor(interval);
  return scheduler_.lr_range_test_min_lr * (1.0 + scheduler_.lr_range_test_step_rate * interval);
}

UpdateRates LrSchedule::OneCycle(int64_t k) const {
  const SchedulerConfig& s = scheduler_;
  UpdateRates rates{s.cycle_min_lr, optimizer_.betas[0], optimizer_.betas[1]};
  if (s.cycle_momentum) {
    rates.beta1 = s.cycle_min_mom;
    rates.beta2 = 0.99;  // DeepSpeed overwrites the configured beta2
  }
  if (k < 0) return rates;
  const double first = static_cast<double>(s.cycle_first_step_size),
               total = first + static_cast<double>(s.cycle_second_step_size);
  if (static_cast<double>(k) >= total) {
    const double z =
        s.decay_step_size > 0 ? (static_cast<double>(k) - total + 1.0) / static_cast<double>(s.decay_step_size) : 0.0;
    rates.lr = s.cycle_min_lr / (1.0 + s.decay_lr_rate * z);
    if (s.cycle_momentum) rates.beta1 = s.cycle_max_mom * (1.0 + s.decay_mom_rate * z);
    return rates;
  }
  const double rho = first / total, j = static_cast<double>(k + 1);
  const double cycle = std::floor(1.0 + j / total);
  const double x = 1.0 + j / total - cycle;
  double f = x <= rho ? x / rho : (x - 1.0) / (rho - 1.0);
  const double stairs = static_cast<double>(x <= rho ? s.cycle_first_stair_count : s.cycle_second_stair_count);
  if (stairs > 0) {  // from the whole steps: f may lie a rounding error below an exact stair
    const double step = std::fmod(j, total);
    const double position = step <= first ? step * stairs / first : (total - step) * stairs / (total - first);
    f = std::floor(position) / stairs;
  }
  rates.lr = s.cycle_min_lr + (s.cycle_max_lr - s.cycle_min_lr) * f;
  if (s.cycle_momentum) rates.beta1 = s.cycle_max_mom - (s.cycle_max_mom - s.cycle_min_mom) * f;
  return rates;
}

UpdateRates LrSchedule::At(int64_t applied_updates) const {
  const int64_t k = applied_updates - 1 + (scheduler_.last_batch_iteration + 1);
  UpdateRates rates{optimizer_.lr, optimizer_.betas[0], optimizer_.betas[1]};
  if (optimizer_.type == OptimizerType::kSgd) rates.beta1 = optimizer_.momentum;
  switch (scheduler_.type) {
    case SchedulerType::kNone:
      break;
    case SchedulerType::kWarmupLR:
    case SchedulerType::kWarmupDecayLR:
      rates.lr = WarmupFamily(k);
      break;
    case SchedulerType::kWarmupCosineLR:
      rates.lr = Cosine(k);
      break;
    case SchedulerType::kLRRangeTest:
      rates.lr = RangeTest(k);
      break;
    case SchedulerType::kOneCycle: {
      const UpdateRates cycle = OneCycle(k);
      if (optimizer_.type != OptimizerType::kSgd) rates = cycle;
      rates.lr = cycle.lr;  // SGD has no betas to cycle: DeepSpeed leaves its momentum alone
      break;
    }
  }
  return rates;
}

double RateFactor(RateScaling method, int64_t batch_size, int64_t base_batch_size) {
  const double ratio = static_cast<double>(batch_size) / static_cast<double>(base_batch_size);
  switch (method) {
    case RateScaling::kLinear:
      return ratio;
    case RateScaling::kSqrt:
      return std::sqrt(ratio);
    case RateScaling::kNone:
      break;
  }
  return 1;
}

}  // namespace trireme
