// What would make a plan fit, where memory ends: the cheapest changes, each with the command that checks it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/advise/layout.h"
#include "engine/plan/memory_text.h"

namespace trireme {

// The command that shows the plan of a job, to which `--with` and the keys' new values are added; empty: none is known.
using PlanCommand = std::function<std::string(const std::vector<std::string>& keys)>;

// `on_gpu`: there is a host beside the device to offload to. One text a change; if no single change suffices, words
// that say so.
std::vector<std::string> CuresFor(const Job& job, const Plan& plan, const MemoryShortage& shortage,
                                  int64_t ranks_per_node, bool on_gpu, const PlanCommand& command);

}  // namespace trireme
