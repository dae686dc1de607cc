#include "engine/base/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string_view>

#include "engine/base/bytes.h"
#include "engine/base/control_groups.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

// The number that stands alone in a file; none where it says "max".
std::optional<int64_t> NumberIn(const fs::path& file) {
  std::ifstream in(file);
  int64_t value = 0;
  if (!(in >> value)) return std::nullopt;
  return value;
}

// Of lines "name value" or "name: value unit"; none where no line has the name.
std::optional<int64_t> CounterIn(const fs::path& file, std::string_view name) {
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with(name)) continue;
    const size_t digits = line.find_first_of("0123456789", name.size());
    if (digits != std::string::npos && line.find_first_not_of(": \t", name.size()) == digits) {
      return std::stoll(line.substr(digits));
    }
  }
  return std::nullopt;
}

// How a version of control groups names what we read.
struct Names {
  const char *limit, *used, *cache, *events;
};
constexpr Names kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"};
constexpr Names kV2 = {"memory.max", "memory.current", "inactive_file", "memory.events"};

}  // namespace

std::string HostMemory::Describe() const {
  return FormatBytes(limit) +
         (is_group ? ", the limit of this control group (container or job)" : ", all of this host");
}

HostMemory ReadHostMemory(const fs::path& root) {
  constexpr int64_t kKiB = 1024;
  HostMemory memory;
  memory.limit = CounterIn(root / "proc/meminfo", "MemTotal").value_or(0) * kKiB;
  memory.available = CounterIn(root / "proc/meminfo", "MemAvailable").value_or(0) * kKiB;
  for (const ControlGroup& group : ControlGroupsOf("memory", root)) {
    const Names& names = group.is_v2 ? kV2 : kV1;
    for (const fs::path& folder : group.folders) {
      const std::optional<int64_t> limit = NumberIn(folder / names.limit);
      if (limit && (memory.limit == 0 || *limit < memory.limit)) {
        memory.limit = *limit;
        memory.is_group = true;
      }
      if (limit && *limit <= memory.limit) {
        const int64_t used = NumberIn(folder / names.used).value_or(0),
                      cache = CounterIn(folder / "memory.stat", names.cache).value_or(0);
        memory.available = std::clamp<int64_t>(*limit - (used - cache), 0, memory.available);
      }
    }
  }
  return memory;
}

int64_t OomKills(const fs::path& root) {
  for (const ControlGroup& group : ControlGroupsOf("memory", root)) {
    const char* events = (group.is_v2 ? kV2 : kV1).events;
    if (const auto count = CounterIn(group.folders.front() / events, "oom_kill")) return *count;
  }
  return CounterIn(root / "proc/vmstat", "oom_kill").value_or(0);
}

ProcessMemory ReadProcessMemory() {
  ProcessMemory memory;
  std::ifstream in("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  if (in >> pages >> resident) memory.resident = resident * ::sysconf(_SC_PAGESIZE);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  memory.peak_resident = std::max(memory.resident, usage.ru_maxrss * int64_t{1024});
  return memory;
}

}  // namespace trireme
