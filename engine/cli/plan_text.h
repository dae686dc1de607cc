// What `trireme plan` prints, one function a concept. Each writes lines to standard output.
#pragma once
#include <string>
#include <string_view>

#include "engine/cli/plan_request.h"

namespace trireme::cli {

void Line(std::string_view title, const std::string& text);  // "batch       text"; an empty title continues

// plan_text.cpp: model, batch, rank grid, types, units, stages, buckets, policies of activations.
void PrintLayout(const Planned& planned);
// plan_config_text.cpp: resolved values with their origins; `all`: those that have their defaults too.
void PrintResolved(const Config& config, bool all);
// plan_memory_text.cpp: the memory of the fullest rank by class, and its share of the host's.
void PrintMemory(const Plan& plan);
// Whether it fits into memory_bytes a device, and what breaks it. False: it does not fit.
bool PrintVerdict(const Plan& plan, double memory_bytes);
// plan_cost_text.cpp: what is sent, by kind and link; the predicted step.
void PrintTraffic(const Planned& planned);
void PrintPrediction(const Planned& planned);

}  // namespace trireme::cli
