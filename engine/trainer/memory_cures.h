// What would make a plan fit, where memory ends: the cheapest changes, each with the command that checks it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/advise/layout.h"
#include "engine/plan/memory_text.h"

namespace trireme {

// `command`: shows the plan of the job, "" if none is known; a change's own keys follow it. `on_gpu`: there is a host
// beside the device to offload to. One text a change; if no single change suffices, words that say so.
std::vector<std::string> CuresFor(const Job& job, const Plan& plan, const MemoryShortage& shortage,
                                  int64_t ranks_per_node, bool on_gpu, const std::string& command);

}  // namespace trireme
