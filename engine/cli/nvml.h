// What NVIDIA's management library says of the GPUs of this machine, for `trireme doctor`. It is opened by name while
// the program runs: a machine without it is a machine without GPUs.
//   Findings found = GpuFindings();
#pragma once
#include <filesystem>
#include <string>

#include "engine/cli/findings.h"

namespace trireme::cli {

// Driver, each GPU (memory, PCIe and NVLink, errors, throttling, MIG), and how each pair of them is connected.
// `library`: another one in tests. `root`: where proc/ and dev/ lie, which tell whether there should be GPUs.
Findings GpuFindings(const std::string& library = "libnvidia-ml.so.1", const std::filesystem::path& root = "/");

}  // namespace trireme::cli
