// Where the kernel shows the limits of the control groups (a container's, a batch job's) that this process is in.
//   for (const ControlGroup& group : ControlGroupsOf("memory")) ...
#pragma once
#include <filesystem>
#include <string_view>
#include <vector>

namespace trireme {

struct ControlGroup {
  bool is_v2 = true;  // version 1 has other names for the same limits
  // The group's own folder, then those above it: their limits count too. Some may not exist.
  std::vector<std::filesystem::path> folders;
};

// `controller`: "memory", "cpu". `root`: where /proc and /sys hang; tests give a folder of their own.
std::vector<ControlGroup> ControlGroupsOf(std::string_view controller, const std::filesystem::path& root = "/");

}  // namespace trireme
