// Plain sentences about what a layout costs, for `trireme plan` and for the start of a run.
//   for (const std::string& note : LayoutNotes(plan, ranks_per_node)) log::Warn("{}", note);
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace trireme {

// Rates at which a rank sends, in bytes per second, as measured with NCCL's ring collectives: one HDR InfiniBand port a
// GPU (200 Gb/s at 87 %); eight A100 behind NVSwitch.
struct RankRates {
  double network = 21.75e9, node = 235e9;
  std::string network_text = " (one 200 Gb/s port a rank)";
};

// What deserves a warning: tensor-parallel groups that span nodes of `ranks_per_node` ranks, with what they cost and
// what groups inside a node would; a pipeline with fewer micro-batches than ranks, with its bubble.
// Reads Plan::traffic (AccountMemory of engine/schedule).
std::vector<std::string> LayoutNotes(const Plan& plan, int64_t ranks_per_node, const RankRates& rates = {});

}  // namespace trireme
