#include "engine/base/control_groups.h"

#include <fstream>
#include <string>

namespace trireme {

namespace fs = std::filesystem;

std::vector<ControlGroup> ControlGroupsOf(std::string_view controller, const fs::path& root) {
  std::vector<ControlGroup> groups;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "0::/jobs/seven", "4:cpu,cpuacct:/docker/1"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_v2 = controllers == ",,";
    if (!is_v2 && controllers.find("," + std::string(controller) + ",") == std::string::npos) continue;
    const fs::path all = root / "sys/fs/cgroup", top = is_v2 ? all : all / controller;
    ControlGroup group{is_v2, {}};
    fs::path own = fs::path(line.substr(second + 1)).relative_path();
    for (; !own.empty(); own = own.parent_path()) group.folders.push_back(top / own);
    group.folders.push_back(top);
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace trireme
