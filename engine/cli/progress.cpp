#include "engine/cli/progress.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"

#ifdef TRIREME_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#endif

namespace trireme::cli {
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

std::optional<double> PeakTflopsOf(at::Device device, [[maybe_unused]] DType compute) {
#ifdef TRIREME_HAS_CUDA
  cudaDeviceProp properties{};
  if (device.is_cuda() && cudaGetDeviceProperties(&properties, device.index()) == cudaSuccess) {
    return PeakTflops(properties.name, compute);
  }
#endif
  (void)device;
  return std::nullopt;
}

Progress::Progress(const Trainer& trainer, int64_t train_iters, int64_t interval, const std::string& log_json,
                   std::optional<double> peak_tflops)
    : trainer_(trainer),
      train_iters_(train_iters),
      interval_(interval),
      peak_tflops_(peak_tflops),
      json_path_(log_json) {
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
  const Throughput rate = ThroughputOf(trainer_.plan(), window_tokens_, window_seconds_, peak_tflops_);
  const double clip = ClipFactor(r.grad_norm, trainer_.config().gradient_clipping);
  const bool gpu = trainer_.device().is_cuda();
  std::string line = fmt::format(
      "step {}/{} | loss {:.4f} | lr {:.3e} | grad norm {:.3f}{} | {:.0f} tokens/s, {:.0f} per {} | {:.3f} TFLOP/s per "
      "{}{} | memory {} | ETA {}",
      record.step + 1, train_iters_, r.loss, record.lr, std::abs(r.grad_norm),
      clip < 1 ? fmt::format(" clipped to {:.3f}", clip * r.grad_norm) : "", rate.tokens_per_second,
      rate.tokens_per_second_per_rank, gpu ? "GPU" : "rank", rate.tflops_per_rank, gpu ? "GPU" : "rank",
      rate.mfu ? fmt::format(" | MFU {:.1f} % of {:g}", 100 * *rate.mfu, *rate.peak_tflops) : "",
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
  const Throughput rate = ThroughputOf(trainer_.plan(), r.tokens, record.seconds, peak_tflops_);
  const auto whole = [](double value) { return fmt::format("{:.0f}", value); };
  // docs/log_json.md describes each key.
  std::vector<std::pair<const char*, std::string>> members = {
      {"step", std::to_string(record.step)},
      {"loss", JsonNumber(r.loss)},
      {"lr", JsonNumber(record.lr)},
      {"grad_norm", JsonNumber(r.grad_norm)},
      {"loss_scale", JsonNumber(r.loss_scale)},
      {"clip", JsonNumber(ClipFactor(r.grad_norm, trainer_.config().gradient_clipping))},
      {"skipped", std::to_string(r.skipped_steps)},
      {"skipped_in_a_row", std::to_string(trainer_.skips_in_a_row())},
      {"tokens", whole(r.tokens)},
      {"seconds", JsonNumber(record.seconds)},
      {"tokens_per_second", JsonNumber(rate.tokens_per_second)},
      {"tokens_per_second_per_rank", JsonNumber(rate.tokens_per_second_per_rank)},
      {"tflops_per_rank", JsonNumber(rate.tflops_per_rank)},
      {"peak_tflops", rate.peak_tflops ? JsonNumber(*rate.peak_tflops) : "null"},
      {"mfu", rate.mfu ? JsonNumber(*rate.mfu) : "null"},
      {"memory", std::to_string(PeakMemoryBytes(trainer_.device()))},
      {"host_memory", std::to_string(PeakMemoryBytes(at::kCPU))},
  };
  if (record.step + 1 == train_iters_) {
    members.emplace_back("account",
                         MemoryToJson(trainer_.planned(), trainer_.MeasureMemory(), trainer_.device().is_cuda()));
  }
  std::string line;
  for (const auto& [key, value] : members) {
    line += fmt::format("{}\"{}\": {}", line.empty() ? "{" : ", ", key, value);
  }
  line += "}\n";
  if (std::fputs(line.c_str(), json_) < 0 || std::fflush(json_) != 0) {
    throw Error(ErrorCode::kEnvironment, "TRN030", std::string("cannot be written: ") + std::strerror(errno),
                json_path_, "free space on this file system");
  }
}

}  // namespace trireme::cli
