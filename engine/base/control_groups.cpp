#include "engine/base/control_groups.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <system_error>

#include "engine/base/strings.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

// `own`: as /proc/self/cgroup has it, from the top. One that leads out of the top is of another namespace, and not to
// be seen from here.
std::vector<fs::path> FoldersOf(const fs::path& top, fs::path own) {
  std::vector<fs::path> folders;
  own = own.relative_path();
  if (std::ranges::find(own, fs::path("..")) == own.end()) {
    for (; !own.empty(); own = own.parent_path()) folders.push_back(top / own);
  }
  folders.push_back(top);
  return folders;
}

}  // namespace

std::vector<ControlGroup> ControlGroupsOf(std::string_view controller, const fs::path& root) {
  const fs::path all = root / "sys/fs/cgroup";
  std::vector<ControlGroup> groups;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "0::/jobs/seven", "4:cpu,cpuacct:/docker/1"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string list = line.substr(first + 1, second - first - 1), own = line.substr(second + 1);
    if (list.empty()) {
      groups.push_back({true, FoldersOf(all, own)});
      continue;
    }
    const std::vector<std::string> controllers = Split(list, ',');
    if (std::ranges::find(controllers, controller) == controllers.end()) continue;
    std::error_code error;  // mounted by its own name or by that of the list
    const fs::path single = all / controller, top = fs::exists(single, error) ? single : all / list;
    groups.push_back({false, FoldersOf(top, own)});
  }
  if (groups.empty()) groups = {{true, {all}}, {false, {all / controller}}};  // not told: what is mounted there
  return groups;
}

}  // namespace trireme
