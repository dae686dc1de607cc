#include "engine/base/host_cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>

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

struct FreeSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

}  // namespace

std::vector<int> AllowedCpus() {
  for (int most = CPU_SETSIZE; most <= 1 << 20; most *= 2) {  // too small a set is refused
    const std::unique_ptr<cpu_set_t, FreeSet> set(CPU_ALLOC(most));
    const size_t bytes = CPU_ALLOC_SIZE(most);
    if (sched_getaffinity(0, bytes, set.get()) != 0) continue;
    std::vector<int> cpus;
    for (int cpu = 0; cpu < most; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {};
}

int HostCores::usable() const { return quota < allowed ? std::max(1, static_cast<int>(std::ceil(quota))) : allowed; }

HostCores ReadHostCores(const fs::path& root) {
  HostCores cores;
  cores.allowed = std::max(1, static_cast<int>(AllowedCpus().size()));
  for (const ControlGroup& group : ControlGroupsOf("cpu", root)) {
    for (const fs::path& folder : group.folders) cores.quota = std::min(cores.quota, QuotaOf(folder, group.is_v2));
  }
  return cores;
}

}  // namespace trireme
