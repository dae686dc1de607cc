// Layouts of one job side by side: what was measured, and what was predicted beside it.
//   fmt::print("{}", BenchTable(report));  WriteFileDurably(path, BenchJsonLines(report), ...);  BenchPage(report)
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/report/timeline.h"

namespace trireme::report {

struct BenchFigures {
  double step_seconds = 0;
  double tokens_per_second = 0;  // of all ranks
  double tflops_per_rank = 0;    // the model's own operations (engine/plan/throughput.h)
  int64_t memory_bytes = 0;      // of rank 0's device at its peak
  std::vector<std::pair<std::string, int64_t>> memory_by_class;
  Shares shares;
};

struct BenchLayout {
  std::string name;         // "pp2:zero-bubble"
  std::string description;  // "pp 2 x dp 1 x tp 1, ZeRO 1, ..."
  std::string failure;      // why nothing was measured; "": it was
  BenchFigures measured;
  double step_deviation = 0;              // standard deviation of the steps, in seconds
  std::vector<double> step_seconds;       // of each measured step
  std::optional<double> mfu;              // where the peak is known
  std::optional<double> gpu_utilisation;  // mean of the devices, 0 to 1; where NVML says
  std::optional<BenchFigures> predicted;  // with a cluster
  Timeline timeline;                      // of one step, measured
  std::optional<Timeline> predicted_timeline;
};

struct BenchReport {
  std::string model, device, cluster;  // cluster: its name; "": nothing is predicted
  int64_t ranks = 0, global_batch_size = 0, sequence_length = 0, steps = 0, warmup = 0;
  std::vector<BenchLayout> layouts;
};

// Two lines a layout: measured, and where there are any, the predicted figures below.
std::string BenchTable(const BenchReport& report);
// One object a layout; docs/bench.md lists the keys.
std::string BenchJsonLines(const BenchReport& report);
// A page: table, plots, and both timelines of each layout.
std::string BenchPage(const BenchReport& report);

}  // namespace trireme::report
