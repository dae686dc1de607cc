#include "launcher/devices.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <system_error>

#include "engine/base/error.h"
#include "engine/base/strings.h"

namespace trireme::launcher {
namespace {

namespace fs = std::filesystem;

bool AllDigits(std::string_view text) {
  return !text.empty() && text.size() <= 9 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string NumberList(const std::vector<int64_t>& numbers) {
  std::vector<std::string> words;
  for (const int64_t number : numbers) words.push_back(std::to_string(number));
  return Join(words, ",");
}

Error FilterError(const std::string& flag, const std::string& text, const std::string& what) {
  return {ErrorCode::kConfig, "LCH024", what, "--" + flag + " " + text,
          "write HOST, HOST:0,1 or HOST:0-3; several hosts are joined by @"};
}

// "3" or "0-3", blanks around it allowed.
void AddSlots(const std::string& flag, const std::string& text, std::string_view word, std::set<int64_t>& slots) {
  const std::string_view trimmed = Trim(word);
  const size_t dash = trimmed.find('-');
  const std::string_view first = Trim(trimmed.substr(0, dash));
  const std::string_view last = dash == trimmed.npos ? first : Trim(trimmed.substr(dash + 1));
  if (!AllDigits(first) || !AllDigits(last))
    throw FilterError(flag, text, fmt::format("'{}' is no slot number", trimmed));
  const int64_t low = std::stoll(std::string(first)), high = std::stoll(std::string(last));
  if (low > high || high > 4095) throw FilterError(flag, text, fmt::format("'{}' is no range of slots", trimmed));
  for (int64_t slot = low; slot <= high; ++slot) slots.insert(slot);
}

// The slots that the job uses, out of those there are; `available` in their order.
std::vector<int64_t> Filter(const LaunchOptions& options, const std::string& host,
                            const std::vector<int64_t>& available, bool bounded) {
  const bool include = !options.include.empty();
  const std::string flag = include ? "include" : "exclude";
  const std::string& text = include ? options.include : options.exclude;
  const std::optional<std::vector<int64_t>> named = ParseFilter(flag, text, host);
  if (!named) return include ? available : std::vector<int64_t>();
  std::vector<int64_t> missing;
  for (const int64_t slot : *named) {
    if (std::find(available.begin(), available.end(), slot) == available.end()) missing.push_back(slot);
  }
  if (!missing.empty() && (bounded || !include)) {
    throw Error(ErrorCode::kConfig, "LCH026",
                fmt::format("host {} has slots {}, asked {}", host, NumberList(available), NumberList(missing)),
                "--" + flag + " " + text,
                "ask for slots that it has, or raise slots= in the hostfile or add to CUDA_VISIBLE_DEVICES");
  }
  if (include) return *named;
  std::vector<int64_t> left;
  for (const int64_t slot : available) {
    if (std::find(named->begin(), named->end(), slot) == named->end()) left.push_back(slot);
  }
  return left;
}

Error TooManyRanks(const std::string& what, int64_t asked, int64_t have) {
  return {ErrorCode::kConfig, "LCH027", fmt::format("{} ranks asked, {} GPUs visible", asked, have), what,
          fmt::format("ask for {} or fewer, or pass --oversubscribe to put several ranks on a GPU, or --cpu", have)};
}

DeviceChoice ChooseCpu(const LaunchOptions& options, const std::optional<HostSlots>& hostfile,
                       const std::string& host) {
  DeviceChoice choice;
  choice.host = host;
  choice.num_ranks = hostfile ? hostfile->slots : 1;
  if (options.num_gpus > 0) {
    choice.num_ranks = options.num_gpus;
  } else if (!options.include.empty() || !options.exclude.empty()) {
    std::vector<int64_t> slots(static_cast<size_t>(choice.num_ranks));
    std::iota(slots.begin(), slots.end(), 0);
    choice.num_ranks = static_cast<int64_t>(Filter(options, host, slots, hostfile.has_value()).size());
  }
  return choice;
}

// Slot numbers of the tokens: physical numbers where all tokens are numbers, else positions.
std::vector<int64_t> SlotNumbers(const Devices& devices, bool by_position) {
  const bool numbers = !by_position && std::all_of(devices.tokens.begin(), devices.tokens.end(), AllDigits);
  std::vector<int64_t> slots;
  for (size_t i = 0; i < devices.tokens.size(); ++i)
    slots.push_back(numbers ? std::stoll(devices.tokens[i]) : static_cast<int64_t>(i));
  return slots;
}

void CheckVisible(const Devices& devices) {
  const std::string where = "CUDA_VISIBLE_DEVICES=" + devices.visible.value_or("");
  if (devices.tokens.empty()) {
    throw Error(ErrorCode::kConfig, "LCH025", fmt::format("hides all {} GPUs of this machine", devices.num_gpus), where,
                "unset the variable to use them, or pass --cpu to start CPU ranks");
  }
  for (const std::string& token : devices.tokens) {
    if (AllDigits(token) && std::stoll(token) >= devices.num_gpus) {
      throw Error(ErrorCode::kConfig, "LCH025",
                  fmt::format("names GPU {}, this machine has GPUs 0-{}", token, devices.num_gpus - 1), where,
                  "name GPUs that nvidia-smi lists");
    }
  }
}

DeviceChoice ChooseGpus(const LaunchOptions& options, const Devices& devices, const std::optional<HostSlots>& hostfile,
                        const std::string& host) {
  CheckVisible(devices);
  DeviceChoice choice;
  choice.host = host;
  const auto have = static_cast<int64_t>(devices.tokens.size());
  int64_t asked = have;
  if (hostfile) asked = hostfile->slots;
  if (options.num_gpus > 0) asked = options.num_gpus;
  if (asked > have && !options.oversubscribe) {
    throw TooManyRanks(options.num_gpus > 0 ? "--num_gpus" : "hostfile entry " + host, asked, have);
  }
  const std::vector<int64_t> slots = SlotNumbers(devices, hostfile.has_value());
  if (!options.include.empty() || !options.exclude.empty()) {
    const auto pool = static_cast<std::ptrdiff_t>(std::min(have, asked));
    for (const int64_t slot : Filter(options, host, {slots.begin(), slots.begin() + pool}, true)) {
      choice.tokens.push_back(
          devices.tokens[static_cast<size_t>(std::find(slots.begin(), slots.end(), slot) - slots.begin())]);
    }
    choice.num_ranks = static_cast<int64_t>(choice.tokens.size());
  } else {
    choice.tokens.assign(devices.tokens.begin(),
                         devices.tokens.begin() + static_cast<std::ptrdiff_t>(std::min(asked, have)));
    choice.num_ranks = asked;
  }
  return choice;
}

}  // namespace

int64_t CountGpus(const fs::path& root) {
  int64_t usable = 0, present = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root / "dev", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("nvidia") || !AllDigits(std::string_view(name).substr(6))) continue;
    ++present;
    if (access(entry.path().c_str(), R_OK | W_OK) == 0) ++usable;  // also honours the device list of a control group
  }
  if (present > 0) return usable;
  int64_t listed = 0;
  for ([[maybe_unused]] const fs::directory_entry& entry :
       fs::directory_iterator(root / "proc/driver/nvidia/gpus", error))
    ++listed;
  return listed;
}

Devices MakeDevices(int64_t num_gpus, std::optional<std::string> visible) {
  Devices devices;
  devices.num_gpus = num_gpus;
  devices.visible = std::move(visible);
  if (!devices.visible) {
    for (int64_t i = 0; i < num_gpus; ++i) devices.tokens.push_back(std::to_string(i));
    return devices;
  }
  for (const std::string& word : Split(*devices.visible, ',')) {
    const std::string token(Trim(word));
    if (token.empty() || token[0] == '-') break;  // as CUDA: the list ends at the first word that names nothing
    if (std::find(devices.tokens.begin(), devices.tokens.end(), token) == devices.tokens.end())
      devices.tokens.push_back(token);
  }
  return devices;
}

std::optional<std::vector<int64_t>> ParseFilter(const std::string& flag, const std::string& text,
                                                const std::string& host) {
  std::set<int64_t> slots;
  bool whole = false;
  for (const std::string& node : Split(text, '@')) {
    const std::vector<std::string> parts = Split(node, ':');
    if (parts[0] != host)
      throw FilterError(flag, text, fmt::format("no host '{}' in this job, only {}", parts[0], host));
    if (parts.size() > 2) throw FilterError(flag, text, fmt::format("'{}' has more than one colon", node));
    if (parts.size() == 1) {
      whole = true;
      continue;
    }
    for (const std::string& word : Split(parts[1], ',')) AddSlots(flag, text, word, slots);
  }
  if (whole) return std::nullopt;
  return std::vector<int64_t>(slots.begin(), slots.end());
}

DeviceChoice ChooseDevices(const LaunchOptions& options, const Devices& devices,
                           const std::optional<HostSlots>& hostfile) {
  const std::string host = hostfile ? hostfile->host : "localhost";
  const bool cpu = options.cpu || devices.num_gpus == 0;
  DeviceChoice choice = cpu ? ChooseCpu(options, hostfile, host) : ChooseGpus(options, devices, hostfile, host);
  if (choice.num_ranks == 0) {
    const std::string filter =
        options.include.empty() ? "--exclude " + options.exclude : "--include " + options.include;
    throw Error(ErrorCode::kConfig, "LCH028", "no device is left for the job", filter,
                "leave at least one slot of " + host);
  }
  return choice;
}

}  // namespace trireme::launcher
