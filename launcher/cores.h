// The cores that each rank may run on: `--bind_cores_to_rank` and `--bind_core_list`, DeepSpeed's flags, without
// numactl. Memory follows: Linux takes it from the node of the core that touches it first.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::launcher {

using Cpus = std::vector<int>;  // as the system numbers them, ascending

// What this process may use, one entry a physical core: hardware threads of a core belong to one rank. None where the
// system does not say.
std::vector<Cpus> AllowedCores(const std::filesystem::path& root = "/");

// "0,2-4": ascending, without blanks. Throws Error{kUsage, LCH003}.
Cpus ParseCoreList(std::string_view text);

// The cores of each rank: consecutive ones, the same number for all; what is left over stays idle. More ranks than
// cores (which DeepSpeed refuses) take turns: ranks 0 and 2 share the first of two. A list instead of `allowed` counts
// each CPU as a core. Throws Error{kUsage, LCH013} if the list has CPUs that this process may not use, or `allowed`
// none.
std::vector<Cpus> ShareCores(const std::vector<Cpus>& allowed, const std::string& list, int ranks);

std::string CoresText(const Cpus& cpus);  // "0-3,8"

}  // namespace trireme::launcher
