#include "engine/cli/progress.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "engine/base/bytes.h"
#include "engine/base/error.h"

#ifdef TRIREME_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace trireme::cli {
namespace {

std::string Number(double value) { return std::isfinite(value) ? fmt::format("{:.17g}", value) : "null"; }

}  // namespace

int64_t PeakMemoryBytes(at::Device device) {
#ifdef TRIREME_HAS_CUDA
  if (device.is_cuda()) {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
    return stats.reserved_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
  }
#endif
  (void)device;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

Progress::Progress(const Trainer& trainer, int64_t train_iters, int64_t interval, const std::string& log_json)
    : trainer_(trainer), train_iters_(train_iters), interval_(interval), json_path_(log_json) {
  for (const UnitLayout& unit : trainer.plan().units) flops_per_token_ += 3 * unit.spec.forward_flops_per_token;
  if (log_json.empty()) return;
  json_ = std::fopen(log_json.c_str(), "w");
  if (json_ == nullptr) {
    throw Error(ErrorCode::kEnvironment, "TRN030", std::string("cannot be written: ") + std::strerror(errno), log_json,
                "name a file in a folder that exists");
  }
}

Progress::~Progress() {
  if (json_ != nullptr) std::fclose(json_);
}

void Progress::Add(const StepRecord& record) {
  window_seconds_ += record.seconds;
  window_tokens_ += record.result.tokens;
  seconds_per_step_ = seconds_per_step_ == 0 ? record.seconds : 0.95 * seconds_per_step_ + 0.05 * record.seconds;
  if (json_ != nullptr) WriteJson(record);
  if (interval_ > 0 && ((record.step + 1) % interval_ == 0 || record.step + 1 == train_iters_)) Print(record);
}

void Progress::Print(const StepRecord& record) {
  const StepResult& r = record.result;
  const double rate = window_tokens_ / window_seconds_;
  const double clip = ClipFactor(r.grad_norm, trainer_.config().gradient_clipping);
  std::string line = fmt::format(
      "step {}/{} | loss {:.4f} | lr {:.3e} | grad norm {:.3f}{} | {:.0f} tokens/s | {:.3f} TFLOP/s | memory {} | ETA "
      "{}",
      record.step + 1, train_iters_, r.loss, record.lr, std::abs(r.grad_norm),
      clip < 1 ? fmt::format(" clipped to {:.3f}", clip * r.grad_norm) : "", rate, rate * flops_per_token_ / 1e12,
      FormatBytes(PeakMemoryBytes(trainer_.device())),
      FormatDuration(seconds_per_step_ * static_cast<double>(train_iters_ - record.step - 1)));
  if (trainer_.config().fp16.enabled) line += fmt::format(" | loss scale {:g}", r.loss_scale);
  if (r.skipped_steps > 0) line += fmt::format(" | skipped {}", r.skipped_steps);
  fmt::print("{}\n", line);
  std::fflush(stdout);
  window_seconds_ = window_tokens_ = 0;
}

void Progress::WriteJson(const StepRecord& record) {
  const StepResult& r = record.result;
  std::string account;
  if (record.step + 1 == train_iters_) {
    account =
        ", \"account\": " + MemoryToJson(trainer_.planned(), trainer_.MeasureMemory(), trainer_.device().is_cuda());
  }
  const std::string line = fmt::format(
      "{{\"step\": {}, \"loss\": {}, \"lr\": {}, \"grad_norm\": {}, \"loss_scale\": {}, \"clip\": {}, \"skipped\": {}, "
      "\"skipped_in_a_row\": {}, \"tokens\": {:.0f}, \"seconds\": {}, \"memory\": {}, \"host_memory\": {}{}}}\n",
      record.step, Number(r.loss), Number(record.lr), Number(r.grad_norm), Number(r.loss_scale),
      Number(ClipFactor(r.grad_norm, trainer_.config().gradient_clipping)), r.skipped_steps, trainer_.skips_in_a_row(),
      r.tokens, Number(record.seconds), PeakMemoryBytes(trainer_.device()), PeakMemoryBytes(at::kCPU), account);
  if (std::fputs(line.c_str(), json_) < 0 || std::fflush(json_) != 0) {
    throw Error(ErrorCode::kEnvironment, "TRN030", std::string("cannot be written: ") + std::strerror(errno),
                json_path_, "free space on this file system");
  }
}

}  // namespace trireme::cli
