#include "engine/trainer/memory_cures.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/advise/changes.h"
#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/strings.h"

namespace trireme {
namespace {

constexpr size_t kChangesShown = 2;

// Of what one rank has, the share that would fit: others need as much beside it.
int64_t Share(int64_t bytes, const MemoryShortage& shortage) {
  const double share = static_cast<double>(shortage.room) / static_cast<double>(std::max<int64_t>(1, shortage.needed));
  return static_cast<int64_t>(std::min(1.0, share) * static_cast<double>(bytes));
}

FillOptions OptionsOf(const Plan& plan, const MemoryShortage& shortage, bool on_gpu) {
  FillOptions options;
  options.may_offload = on_gpu;
  options.limit_bytes = INT64_MAX;
  if (!shortage.on_host || !on_gpu) options.limit_bytes = Share(plan.memory.total(), shortage);
  if (shortage.on_host) options.host_limit_bytes = Share(plan.memory.host.total(), shortage);
  return options;
}

}  // namespace

std::vector<std::string> CuresFor(const Job& job, const Plan& plan, const MemoryShortage& shortage,
                                  int64_t ranks_per_node, bool on_gpu, const PlanCommand& command) {
  std::vector<Change> changes;
  try {
    changes = CheapestChanges(job, OptionsOf(plan, shortage, on_gpu), ranks_per_node, nullptr, kChangesShown);
  } catch (const Error&) {  // this text must not hide the error that it belongs to
  }
  if (changes.empty()) {
    return {"no single change of the layout suffices: " + Join(WaysToShrink(plan, shortage.on_host), ", ")};
  }
  std::vector<std::string> cures;
  for (const Change& change : changes) {
    std::string text = fmt::format("{}: {} a rank", change.what, FormatBytes(change.plan.memory.total()));
    if (change.plan.memory.host.total() > 0) {
      text += fmt::format(" and {} on the host", FormatBytes(change.plan.memory.host.total()));
    }
    if (command) {
      std::vector<std::string> keys;
      for (const auto& [key, value] : change.keys) keys.push_back(key);
      text += fmt::format("\n         check: {} {}", command(keys), WithFlags(change));
    }
    cures.push_back(text);
  }
  return cures;
}

}  // namespace trireme
