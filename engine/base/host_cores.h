// How many cores this process may use, by the kernel's word.
//   const HostCores cores = ReadHostCores();  cores.usable();
#pragma once
#include <filesystem>
#include <limits>
#include <vector>

namespace trireme {

struct HostCores {
  int allowed = 1;  // of the affinity mask
  // Cores' worth of time that the tightest control group grants (docker's --cpus); infinite without a quota.
  double quota = std::numeric_limits<double>::infinity();
  int usable() const;  // the smaller, in whole cores: 1.5 cores keep two threads busy
};

// `root`: where /proc and /sys hang; tests give a folder of their own.
HostCores ReadHostCores(const std::filesystem::path& root = "/");

// Numbers of the CPUs in the affinity mask, ascending; empty where the kernel does not say.
std::vector<int> AllowedCpus();

}  // namespace trireme
