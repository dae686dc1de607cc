// What a training run shows while it runs: a line for people, a JSON object for machines.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "engine/plan/throughput.h"
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
  // `interval`: steps between lines, 0: none. `peak_tflops`: of one device, which the MFU is a share of. Throws
  // Error{kEnvironment} if the file cannot be opened.
  Progress(const Trainer& trainer, int64_t train_iters, int64_t interval, const std::string& log_json,
           std::optional<double> peak_tflops);
  ~Progress();
  void Add(const StepRecord& record);

 private:
  void Print(const StepRecord& record);
  void WriteJson(const StepRecord& record);

  const Trainer& trainer_;
  int64_t train_iters_, interval_;
  std::optional<double> peak_tflops_;
  double window_seconds_ = 0, window_tokens_ = 0;
  double seconds_per_step_ = 0;  // smoothed, for the ETA
  std::FILE* json_ = nullptr;
  std::string json_path_;
};

// Of the device by its name; nullopt where nobody knows it, as on a CPU.
std::optional<double> PeakTflopsOf(at::Device device, DType compute);

// Peak memory of this process on its device: LibTorch's pool on a GPU, resident memory on the CPU.
int64_t PeakMemoryBytes(at::Device device);

}  // namespace trireme::cli
