// What a training run shows while it runs: a line for people, a JSON object for machines.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "engine/trainer/trainer.h"

namespace trireme::cli {

struct StepRecord {
  int64_t step = 0;  // counted from 0
  StepResult result;
  double lr = 0;       // the one this update used
  double seconds = 0;  // of this step, data and all
};

class Progress {
 public:
  // `interval`: steps between lines, 0: none. Throws Error{kEnvironment} if the file cannot be opened.
  Progress(const Trainer& trainer, int64_t train_iters, int64_t interval, const std::string& log_json);
  ~Progress();
  void Add(const StepRecord& record);

 private:
  void Print(const StepRecord& record);
  void WriteJson(const StepRecord& record);

  const Trainer& trainer_;
  int64_t train_iters_, interval_;
  double flops_per_token_ = 0;  // forward and backward, attention counted causal once, no recomputation
  double window_seconds_ = 0, window_tokens_ = 0;
  double seconds_per_step_ = 0;  // smoothed, for the ETA
  std::FILE* json_ = nullptr;
  std::string json_path_;
};

// Peak memory of this process on its device: LibTorch's pool on a GPU, resident memory on the CPU.
int64_t PeakMemoryBytes(at::Device device);

}  // namespace trireme::cli
