// From the command line of `plan` to a Plan, with what it was made of, so that others can change a part and plan again.
//   const Planned planned = PlanRequested(options);  // throws Error for what cannot be planned; prints warnings
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "engine/plan/plan.h"
#include "engine/schedule/predict.h"
#include "parsers/cli.h"
#include "parsers/cluster.h"
#include "parsers/config.h"
#include "parsers/model_spec.h"

namespace trireme::cli {

struct Planned {
  Config config;
  ModelSpec model;
  PlanInputs inputs;
  int64_t num_nodes = 1, ranks_per_node = 1;
  std::optional<Cluster> cluster;        // --cluster; its nodes are num_nodes
  Plan plan;                             // with memory and traffic
  std::optional<Prediction> prediction;  // where there is a cluster
  std::optional<Plan> stage_1;           // the same at ZeRO 1, where the plan has a pipeline and a higher stage
};

Planned PlanRequested(const PlanOptions& options);

// The config's text, with what --with sets. Throws Error{kConfig} where it cannot be read.
std::string ConfigText(const PlanOptions& options);

// Bytes of one device to compare with: --gpu-memory-gib, else what the cluster's device has; 0: not known.
double MemoryOfDevice(const PlanOptions& options, const Planned& planned);

}  // namespace trireme::cli
