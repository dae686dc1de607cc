#include "launcher/cores.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <set>

#include "engine/base/error.h"
#include "engine/base/host_cores.h"
#include "engine/base/strings.h"

namespace trireme::launcher {
namespace {

constexpr int kMostCpus = 1 << 16;

std::optional<int> ToCpu(std::string_view text) {
  int cpu = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), cpu);
  if (error != std::errc() || end != text.data() + text.size() || cpu < 0 || cpu >= kMostCpus) return std::nullopt;
  return cpu;
}

// "a" or "a-b", comma separated, ascending; nothing if the text is otherwise.
std::optional<Cpus> ReadList(std::string_view text) {
  Cpus cpus;
  for (const std::string& part : Split(std::string(text), ',')) {
    const size_t dash = part.find('-');
    const std::optional<int> first = ToCpu(part.substr(0, dash)),
                             last = dash == std::string::npos ? first : ToCpu(part.substr(dash + 1));
    if (!first || !last || *last < *first || (!cpus.empty() && *first <= cpus.back())) return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::string SiblingsText(const std::filesystem::path& root, int cpu) {
  std::ifstream in(root / fmt::format("sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
  std::string text;
  std::getline(in, text);
  return text;
}

std::vector<Cpus> Listed(const std::vector<Cpus>& allowed, const std::string& list) {
  std::set<int> may;
  for (const Cpus& core : allowed) may.insert(core.begin(), core.end());
  std::vector<Cpus> cores;
  Cpus foreign;
  for (const int cpu : ParseCoreList(list)) {
    cores.push_back({cpu});
    if (!may.contains(cpu)) foreign.push_back(cpu);
  }
  if (foreign.empty()) return cores;
  throw Error(
      ErrorCode::kUsage, "LCH013", fmt::format("this process may not run on {}", CoresText(foreign)),
      "--bind_core_list " + list,
      "choose from " + CoresText(Cpus(may.begin(), may.end())) + ", which taskset, the job or container grants");
}

}  // namespace

std::vector<Cpus> AllowedCores(const std::filesystem::path& root) {
  const std::vector<int> allowed = AllowedCpus();
  const std::set<int> mask(allowed.begin(), allowed.end());
  std::vector<Cpus> cores;
  std::set<int> taken;
  for (const int cpu : allowed) {
    if (taken.contains(cpu)) continue;
    Cpus core = {cpu};
    for (const int sibling : ReadList(SiblingsText(root, cpu)).value_or(Cpus{})) {
      if (sibling != cpu && mask.contains(sibling) && !taken.contains(sibling)) core.push_back(sibling);
    }
    std::sort(core.begin(), core.end());
    taken.insert(core.begin(), core.end());
    cores.push_back(core);
  }
  return cores;
}

Cpus ParseCoreList(std::string_view text) {
  if (std::optional<Cpus> cpus = ReadList(text)) return *cpus;
  throw Error(ErrorCode::kUsage, "LCH003", fmt::format("'{}' is no list of cores", text), "--bind_core_list",
              "write numbers and ranges in ascending order, without blanks: 0,2-5");
}

std::vector<Cpus> ShareCores(const std::vector<Cpus>& allowed, const std::string& list, int ranks) {
  if (allowed.empty()) {
    throw Error(ErrorCode::kUsage, "LCH013", "the system does not say which cores this process may use",
                "--bind_cores_to_rank", "leave the flag out");
  }
  const std::vector<Cpus> cores = list.empty() ? allowed : Listed(allowed, list);
  const size_t each = std::max<size_t>(1, cores.size() / static_cast<size_t>(ranks));
  std::vector<Cpus> shares(static_cast<size_t>(ranks));
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    for (size_t i = 0; i < each; ++i) {
      const Cpus& core = cores[(rank * each + i) % cores.size()];
      shares[rank].insert(shares[rank].end(), core.begin(), core.end());
    }
    std::sort(shares[rank].begin(), shares[rank].end());
  }
  return shares;
}

std::string CoresText(const Cpus& cpus) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    runs.push_back(last == i ? std::to_string(cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[last]));
    i = last + 1;
  }
  return fmt::format("{}", fmt::join(runs, ","));
}

}  // namespace trireme::launcher
