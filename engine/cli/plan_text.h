// What `trireme plan` prints, one function a concept. Each writes lines to standard output.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cli/plan_request.h"
#include "engine/cli/plan_suggest.h"

namespace trireme::cli {

void Line(std::string_view title, const std::string& text);  // "batch       text"; an empty title continues

// plan_text.cpp: model, batch, rank grid, types, units, stages, buckets, policies of activations.
void PrintLayout(const Planned& planned);
// plan_config_text.cpp: resolved values with their origins; `all`: those that have their defaults too.
void PrintResolved(const Config& config, bool all);
// plan_grid.cpp: one line a pipeline rank, "0-7 8-15 | 16-23 24-31": the ranks of a tensor-parallel group are joined,
// a bar stands between nodes; of many only the first and the last.
std::vector<std::string> GridLines(const Topology& topology, int64_t ranks_per_node);
// plan_memory_text.cpp: the memory of the fullest rank by class, and its share of the host's.
void PrintMemory(const Plan& plan);
void PrintVerdict(const Planned& planned, const Verdict& verdict);
// plan_cost_text.cpp: what is sent, by kind and link; the predicted step.
void PrintTraffic(const Planned& planned);
void PrintPrediction(const Planned& planned);

// plan_json.cpp: all of it as one JSON object (docs/plan.md has its keys).
std::string PlanJson(const Planned& planned, const std::optional<Verdict>& verdict, const Proposals& proposals);

}  // namespace trireme::cli
