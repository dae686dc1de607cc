// What `trireme doctor` says of the machine without a GPU library and without LibTorch: it reads what the kernel shows.
//   Findings found = HostFindings({.nvme_path = "/local/nvme"});
#pragma once
#include <filesystem>
#include <string>

#include "engine/cli/findings.h"

namespace trireme::cli {

struct HostSources {
  std::filesystem::path root = "/";      // where proc/, sys/ and dev/ lie: another folder in tests
  std::filesystem::path nvme_path = "";  // of states offloaded to a disk; "": the current folder
};

// Processor, load, memory, shared memory, limits, huge pages, clock, network, disk: in this order.
Findings HostFindings(const HostSources& sources);

// Each alone.
Findings ProcessorFindings(const HostSources& sources);
Findings MemoryFindings(const HostSources& sources);
Findings SharedMemoryFindings(const HostSources& sources);
Findings LimitFindings(const HostSources& sources);
Findings HugePageFindings(const HostSources& sources);
Findings ClockFindings();
Findings NetworkFindings(const HostSources& sources);  // InfiniBand ports, the machine's own name
Findings DiskFindings(const HostSources& sources);

}  // namespace trireme::cli
