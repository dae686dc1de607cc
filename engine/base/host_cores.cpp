#include "engine/base/host_cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "engine/base/control_groups.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

// Microseconds of processor time in a period, over the period. "max 100000" and -1 are no quota.
double QuotaOf(const fs::path& folder, bool is_v2) {
  double quota = 0, period = 0;
  if (is_v2) {
    std::ifstream(folder / "cpu.max") >> quota >> period;
  } else {
    std::ifstream(folder / "cpu.cfs_quota_us") >> quota;
    std::ifstream(folder / "cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : kNoQuota;
}

}  // namespace

int HostCores::usable() const { return quota < allowed ? std::max(1, static_cast<int>(std::ceil(quota))) : allowed; }

HostCores ReadHostCores(const fs::path& root) {
  HostCores cores;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) cores.allowed = CPU_COUNT(&mask);
  for (const ControlGroup& group : ControlGroupsOf("cpu", root)) {
    for (const fs::path& folder : group.folders) cores.quota = std::min(cores.quota, QuotaOf(folder, group.is_v2));
  }
  return cores;
}

}  // namespace trireme
