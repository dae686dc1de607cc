// From the command line of `plan` to a Plan, with what it was made of, so that others can change a part and plan again.
//   const Planned planned = PlanRequested(options);  // throws Error for what cannot be planned; prints warnings
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/advise/fill.h"
#include "engine/plan/plan.h"
#include "engine/schedule/predict.h"
#include "parsers/cli.h"
#include "parsers/cluster.h"
#include "parsers/config.h"
#include "parsers/model_spec.h"

namespace trireme::cli {

// A device's memory, and what of a rank is held against its share of it.
struct DeviceRoom {
  double device_bytes = 0;  // --gpu-memory-gib, else what the cluster's device has; 0: not known
  int64_t ranks = 1;        // that share it
  MemoryScope scope = MemoryScope::kGpu;
  double of_rank() const { return device_bytes / static_cast<double>(ranks); }
};

// What trireme.fill chose: `text` says it.
struct PlannedFill {
  std::string text;
  bool fits = false;
  int64_t limit_bytes = 0, needed_bytes = 0;  // of the fullest rank
};

struct Planned {
  Config config;  // what is planned: `written`, with what trireme.fill chose
  Config written;
  // Why the config's own layout cannot be, where --suggest looks for others: `written` is then one that can. "": it
  // can.
  std::string refused;
  std::optional<PlannedFill> fill;  // trireme.fill, where a device's memory is known
  ModelSpec model;
  PlanInputs inputs;
  int64_t num_nodes = 1, ranks_per_node = 1;
  std::optional<Cluster> cluster;  // --cluster; its nodes are num_nodes
  DeviceRoom room;
  Plan plan;                             // with memory and traffic
  std::optional<Prediction> prediction;  // where there is a cluster
  std::vector<Problem> notices;          // what config and model file give to say, warnings among them; no errors
  std::vector<std::string> warnings;     // about what the layout costs
  std::vector<std::string> advice;       // what would do as well for less
  std::optional<Plan> stage_1;           // the same at ZeRO 1, where the plan has a pipeline and a higher stage
};

// Prints the notices, but those of a stand-in: the caller may show another config in its place.
Planned PlanRequested(const PlanOptions& options);

// To standard error, unless it is to be quiet.
void PrintNotices(const PlanOptions& options, const Planned& planned);

struct Verdict {
  bool fits = true, tight = false;
  double device_bytes = 0, needed_bytes = 0;    // of one device; of the rank that needs most
  int64_t ranks_per_device = 1;                 // more than one: each may take its share
  int pp_rank = 0;                              // that one
  MemoryClass largest = MemoryClass::kWeights;  // what takes most of it
  // The host's memory, where it is known and does not do: what the ranks of a node need there.
  bool host_fits = true;
  double host_bytes = 0, needed_host_bytes = 0;
};

// nullopt: the device's memory is not known.
std::optional<Verdict> VerdictOf(const Planned& planned);

// The limits that the verdict holds a plan against; offloading where the cluster says what it costs.
FillOptions FillFor(const Planned& planned, double share = kTightShare);

}  // namespace trireme::cli
