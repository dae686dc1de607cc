// Measures the machine that a job runs on, and describes it as the cost model reads it (parsers/cluster.h).
//   Calibration found = Calibrate(world, {.folder = nvme_path});   // on every rank
//   WriteFileDurably("this-machine.json", ClusterToJson(found.cluster), ...);
// One rank a GPU; on the CPU, where ranks are processes that share cores and memory, the device is the whole processor
// and all ranks measure at once.
#pragma once
#include <filesystem>

#include "engine/calibrate/compute.h"

namespace trireme::calibrate {

struct CalibrateOptions {
  bool quick = false;            // a look in seconds, for tests: its figures are rough
  std::filesystem::path folder;  // on the disk that is measured; "": none is
};

struct Calibration {
  Cluster cluster;
  Figures figures;  // in the order in which they were measured
};

// Equal on all ranks, but for what rank 0 measures alone: host memory and disk.
Calibration Calibrate(RankWorld& world, const CalibrateOptions& options);

}  // namespace trireme::calibrate
