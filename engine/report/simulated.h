// A plan's step as the simulator sees it: lanes of every rank, and memory over the same time.
//   const SimulatedStep step = SimulateStep(plan, FindCluster("a100-pcie-hdr"));
// The whole program with all micro-batches, unlike Predict (engine/schedule/predict.h), which folds them.
#pragma once
#include <string>
#include <vector>

#include "engine/plan/memory_account.h"
#include "engine/report/timeline.h"
#include "parsers/cluster.h"

namespace trireme::report {

// Bytes of one rank's device by class; each point holds until the next.
struct MemoryRow {
  std::string label;
  std::vector<double> seconds;
  std::vector<MemoryByClass> bytes;  // parallel to `seconds`
};

struct SimulatedStep {
  Timeline timeline;
  std::vector<MemoryRow> memory;  // one a pipeline rank
};

// Up to this many ranks each has its rows; of more, those that differ in dp or tp rank alone share theirs.
constexpr int kMostSingleRanks = 16;

// `plan` has its account (AccountMemory). Throws as Predict does.
SimulatedStep SimulateStep(const Plan& plan, const Cluster& cluster);

}  // namespace trireme::report
