// Which devices this machine offers, and which of them a job uses. No CUDA library is loaded: the kernel's device files
// tell.
//   const Devices devices = FindDevices(options.cpu);
//   const std::vector<std::string> chosen = ChooseDevices(options, devices);   // {"2", "4"} or {"GPU-8932f937-..."}
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options.h"

namespace trireme::launcher {

struct Devices {
  // What CUDA_VISIBLE_DEVICES may hold, in order: indices, or the words of the variable (GPU-..., MIG-...) where it is
  // set.
  std::vector<std::string> tokens;
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES as it was, also when empty
  int64_t num_gpus = 0;                // of the machine, whatever the variable says
};

// GPUs whose device file this process may use (/dev/nvidia0, ...); where there are none, what the driver lists
// (/proc/driver/nvidia/gpus). `root` is "/" but in tests.
int64_t CountGpus(const std::filesystem::path& root);

// The universe of devices: the variable where it is set, else all GPUs. Repeated words count once.
Devices MakeDevices(int64_t num_gpus, std::optional<std::string> visible);

struct HostSlots {
  std::string host;
  int64_t slots = 0;
};
// Slots of this machine in a hostfile of one host. `own_names`: the names and addresses of this machine. Throws
// Error{kConfig}: HST001..HST004 unreadable or wrong lines, LCH020 several hosts, LCH021 another machine.
HostSlots ReadHostfile(const std::filesystem::path& path, const std::vector<std::string>& own_names);

// Host name (long and short), localhost, loopback and interface addresses.
std::vector<std::string> OwnNames();

// Numbers of "localhost:0,2-3" for one host, sorted, without repeats; nothing: all slots. Throws Error{kConfig,
// LCH024}: bad text or another host.
std::optional<std::vector<int64_t>> ParseFilter(const std::string& flag, const std::string& text,
                                                const std::string& host);

struct DeviceChoice {
  std::vector<std::string> tokens;  // value of CUDA_VISIBLE_DEVICES, joined by commas; empty: CPU ranks
  int64_t num_ranks = 0;
  std::string host = "localhost";
};

// Ranks and their devices out of hostfile, filter, --num_gpus, --cpu and the devices there are.
// Throws Error{kConfig, LCH025..LCH028}: devices hidden, slot not there, more ranks than devices, no device left.
DeviceChoice ChooseDevices(const LaunchOptions& options, const Devices& devices,
                           const std::optional<HostSlots>& hostfile);

}  // namespace trireme::launcher
