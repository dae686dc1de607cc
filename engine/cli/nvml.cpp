#include "engine/cli/nvml.h"

#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/strings.h"
#include "engine/cli/nvml_library.h"
#include "launcher/devices.h"
#include "launcher/job.h"

namespace trireme::cli {
namespace {

using Device = void*;
constexpr unsigned kMostLinks = 18;

struct MemoryInfo {
  unsigned long long total = 0, free = 0, used = 0;
};

std::string NameOf(size_t index) { return fmt::format("gpu {}", index); }

void DescribeLinks(const Nvml& nvml, Device gpu, size_t index, Findings& found) {
  unsigned active = 0, links = 0;
  for (unsigned link = 0; link < kMostLinks; ++link) {
    const auto state = nvml.Get<unsigned>("nvmlDeviceGetNvLinkState", gpu, link);
    if (!state) continue;
    ++links;
    active += *state != 0 ? 1 : 0;
  }
  const auto generation = nvml.Get<unsigned>("nvmlDeviceGetCurrPcieLinkGeneration", gpu),
             most_generation = nvml.Get<unsigned>("nvmlDeviceGetMaxPcieLinkGeneration", gpu),
             width = nvml.Get<unsigned>("nvmlDeviceGetCurrPcieLinkWidth", gpu),
             most_width = nvml.Get<unsigned>("nvmlDeviceGetMaxPcieLinkWidth", gpu);
  // An idle card lowers the generation, not the width.
  const bool narrow = width && most_width && *width < *most_width;
  std::string text = generation && width ? fmt::format("PCIe {} x{}", most_generation.value_or(*generation), *width)
                                         : "PCIe not shown";
  text += links == 0 ? ", no NVLink" : fmt::format(", {} of {} NVLinks up", active, links);
  const bool down = active > 0 && active < links;
  found.push_back({narrow || down ? Health::kWarning : Health::kOk, NameOf(index), text, "nvidia-smi -q",
                   narrow ? fmt::format("the slot gives {} of {} lanes: reseat the card, or look at the BIOS and riser",
                                        *width, *most_width)
                   : down ? "look at `nvidia-smi nvlink -s` and the fabric manager's log"
                          : ""});
}

void DescribeTroubles(const Nvml& nvml, Device gpu, size_t index, Findings& found) {
  constexpr int kUncorrected = 1, kSinceBoot = 0;
  const auto errors = nvml.Get<unsigned long long>("nvmlDeviceGetTotalEccErrors", gpu, kUncorrected, kSinceBoot);
  if (errors && *errors > 0) {
    found.push_back({Health::kProblem, NameOf(index),
                     fmt::format("{} uncorrected memory errors since the start", *errors), "nvidia-smi -q -d ECC",
                     "reset the GPU or restart the machine; replace the card if they return"});
  }
  std::array<unsigned, 4> rows{};  // corrected, uncorrected, pending, failed
  if (nvml.Call("nvmlDeviceGetRemappedRows", gpu, &rows[0], &rows[1], &rows[2], &rows[3]) &&
      (rows[2] != 0 || rows[3] != 0)) {
    found.push_back({Health::kProblem, NameOf(index),
                     rows[3] != 0 ? "memory rows could not be remapped" : "memory rows wait to be remapped",
                     "nvidia-smi -q -d ROW_REMAPPER",
                     rows[3] != 0 ? "replace the card" : "reset the GPU when it is idle"});
  }
  constexpr unsigned long long kSlowed = 0x8 | 0x20 | 0x40 | 0x80;  // hardware, temperature, power brake
  const auto reasons = nvml.Get<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", gpu);
  if (reasons && (*reasons & kSlowed) != 0) {
    found.push_back({Health::kWarning, NameOf(index), fmt::format("clocks are held down (reasons {:#x})", *reasons),
                     "nvidia-smi -q -d PERFORMANCE", "look at cooling and power supply"});
  }
  const auto limit = nvml.Get<unsigned>("nvmlDeviceGetPowerManagementLimit", gpu),
             usual = nvml.Get<unsigned>("nvmlDeviceGetPowerManagementDefaultLimit", gpu);
  if (limit && usual && *limit < *usual) {
    found.push_back({Health::kWarning, NameOf(index),
                     fmt::format("power limit {} W, its default is {} W", *limit / 1000, *usual / 1000),
                     "nvidia-smi -q -d POWER", fmt::format("nvidia-smi -i {} -pl {}", index, *usual / 1000)});
  }
  std::array<unsigned, 2> mig{};
  if (nvml.Call("nvmlDeviceGetMigMode", gpu, &mig[0], &mig[1]) && mig[0] != 0) {
    found.push_back({Health::kWarning, NameOf(index), "is split (MIG): a rank sees a part of it", "nvidia-smi -L",
                     "name parts in CUDA_VISIBLE_DEVICES; parts have no way to one another but the host"});
  }
}

void DescribeGpu(const Nvml& nvml, Device gpu, size_t index, Findings& found) {
  const auto memory = nvml.Get<MemoryInfo>("nvmlDeviceGetMemoryInfo", gpu).value_or(MemoryInfo{});
  // A driver takes some hundred MiB for itself.
  const bool taken = memory.used > memory.total / 20;
  found.push_back(
      {taken ? Health::kWarning : Health::kOk, NameOf(index),
       fmt::format("{}, {}, of which {} are free", nvml.Text("nvmlDeviceGetName", gpu),
                   FormatBytes(static_cast<int64_t>(memory.total)), FormatBytes(static_cast<int64_t>(memory.free))),
       "nvidia-smi", taken ? "another program uses it: end that, or plan with less memory" : ""});
  DescribeLinks(nvml, gpu, index, found);
  DescribeTroubles(nvml, gpu, index, found);
}

std::string WayBetween(const Nvml& nvml, Device a, Device b) {
  constexpr int kRead = 0, kNvLink = 2;
  const auto status = [&](int kind) { return nvml.Get<int>("nvmlDeviceGetP2PStatus", a, b, kind); };
  if (status(kNvLink) == 0) return "NVLink";
  const std::string direct = status(kRead) == 0 ? ", direct" : ", through the host";
  switch (nvml.Get<int>("nvmlDeviceGetTopologyCommonAncestor", a, b).value_or(-1)) {
    case 0:
      return "one board" + direct;
    case 10:
      return "one PCIe switch" + direct;
    case 20:
      return "PCIe switches" + direct;
    case 30:
      return "one PCIe root" + direct;
    case 40:
      return "one NUMA node" + direct;
    case 50:
      return "two processors" + direct;
    default:
      return "PCIe" + direct;
  }
}

// Pairs of one way in one finding.
void DescribePairs(const Nvml& nvml, const std::vector<Device>& gpus, Findings& found) {
  std::vector<std::pair<std::string, std::string>> ways;
  for (size_t a = 0; a < gpus.size(); ++a) {
    for (size_t b = a + 1; b < gpus.size(); ++b) {
      const std::string way = WayBetween(nvml, gpus[a], gpus[b]), pair = fmt::format("{}-{}", a, b);
      auto known = ways.begin();
      while (known != ways.end() && known->first != way) ++known;
      if (known == ways.end()) {
        ways.push_back({way, pair});
      } else {
        known->second += ", " + pair;
      }
    }
  }
  for (const auto& [way, pairs] : ways) {
    const bool slow = way.find("through the host") != std::string::npos;
    found.push_back({slow ? Health::kWarning : Health::kOk, "gpu links", fmt::format("{}: GPUs {}", way, pairs),
                     "nvidia-smi topo -m",
                     slow ? "direct access is off: look at ACS and the IOMMU in the BIOS, and at virtualisation; keep "
                            "tensor parallelism off such pairs"
                          : ""});
  }
}

}  // namespace

Findings GpuFindings(const std::string& library, const std::filesystem::path& root) {
  const int64_t device_files = launcher::CountGpus(root);
  Nvml nvml(library);
  if (!nvml.Start()) {
    if (device_files == 0) return {{Health::kOk, "gpu", "none: ranks run on the CPU", "", ""}};
    return {
        {Health::kProblem, "gpu",
         fmt::format("{}, but the driver's library does not work: {}", Counted(device_files, "GPU"), nvml.error()),
         library,
         "install the driver's user-space part of the kernel module's version; in a container start with the NVIDIA "
         "runtime (--gpus all) and restart it after a driver update"}};
  }
  Findings found;
  const int cuda = nvml.Get<int>("nvmlSystemGetCudaDriverVersion_v2").value_or(0);
  const unsigned count = nvml.Get<unsigned>("nvmlDeviceGetCount_v2").value_or(0);
  found.push_back({Health::kOk, "driver",
                   fmt::format("{}, for CUDA up to {}.{}; {}", nvml.Text("nvmlSystemGetDriverVersion"), cuda / 1000,
                               cuda % 1000 / 10, Counted(count, "GPU")),
                   library, ""});
  std::vector<Device> gpus;
  for (unsigned index = 0; index < count; ++index) {
    if (const auto gpu = nvml.Get<Device>("nvmlDeviceGetHandleByIndex_v2", index)) {
      gpus.push_back(*gpu);
      DescribeGpu(nvml, *gpu, index, found);
    } else {
      found.push_back({Health::kProblem, NameOf(index), "does not answer", "nvidia-smi",
                       "look for Xid lines in dmesg; restart the machine"});
    }
  }
  DescribePairs(nvml, gpus, found);
  if (const auto visible = launcher::VisibleDevicesVariable()) {
    found.push_back(
        {Health::kOk, "gpu", fmt::format("shown to programs: \"{}\"", *visible), "CUDA_VISIBLE_DEVICES", ""});
  }
  return found;
}

}  // namespace trireme::cli
