// How much memory this machine has for a program, by the kernel's word: the machine's and the control group's (a
// container's, a batch job's) limit, whichever is smaller.
//   if (needed > ReadHostMemory().limit) ...
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme {

struct HostMemory {
  int64_t limit = 0;             // bytes that can be had at most: above it the kernel kills
  int64_t available = 0;         // of them, now: not taken by any process; caches of files give way
  bool is_group = false;         // the limit is a control group's
  std::string Describe() const;  // "64.00 GiB, the limit of this control group (container or job)"
};

// `root`: where /proc and /sys hang; tests give a folder of their own. Control groups of version 2 and 1; the limits of
// the groups above count too. 0 where the kernel does not say.
HostMemory ReadHostMemory(const std::filesystem::path& root = "/");

// How often the kernel killed a process for want of memory: this control group's counter, else the machine's.
int64_t OomKills(const std::filesystem::path& root = "/");

// Of the calling process.
struct ProcessMemory {
  int64_t resident = 0, peak_resident = 0;
};
ProcessMemory ReadProcessMemory();

}  // namespace trireme
