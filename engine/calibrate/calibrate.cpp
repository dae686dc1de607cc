#include "engine/calibrate/calibrate.h"

#include <fmt/core.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <fstream>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/host_cores.h"
#include "engine/base/log.h"
#include "engine/base/strings.h"
#include "engine/base/version.h"
#include "engine/calibrate/fit.h"
#include "engine/calibrate/host.h"
#include "engine/calibrate/links.h"

#ifdef TRIREME_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace trireme::calibrate {
namespace {

struct KnownPeak {
  const char* part_of_name;
  double bf16;
};
// FLOP/s of dense products, as NVIDIA's data sheets have them. The more special name first.
constexpr KnownPeak kPeaks[] = {{"H100 PCIe", 756e12}, {"H200", 989e12}, {"H100", 989e12}, {"A100", 312e12}};

std::string ProcessorName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return std::string(Trim(line.substr(line.find(':') + 1)));
  }
  return "a processor";
}

void Describe(at::Device on, int64_t cores, DeviceDescription& device) {
  if (!on.is_cuda()) {
    device.kind = DeviceKind::kCpu;
    device.name = fmt::format("{}, {} cores", ProcessorName(), cores);
    return;
  }
#ifdef TRIREME_HAS_CUDA
  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, on.index());
  device.name = properties.name;
  device.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  device.multiprocessors = properties.multiProcessorCount;
#endif
}

void AddPeak(DeviceDescription& device) {
  for (const auto& [part, peak] : kPeaks) {
    if (device.name.find(part) == std::string::npos) continue;
    if (const auto rates = device.rates.find(DType::kBFloat16); rates != device.rates.end()) rates->second.peak = peak;
    return;
  }
}

std::string HostName() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string Source(const RankWorld& world, const Cluster& cluster, const Figures& figures) {
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  gmtime_r(&now, &day);
  std::array<char, 16> date{};
  std::strftime(date.data(), date.size(), "%Y-%m-%d", &day);
  double widest = 0;
  for (const Figure& figure : figures) widest = std::max(widest, figure.spread);
  return fmt::format(
      "measured by trireme doctor --calibrate {} on {}, {}, {} ranks, LibTorch {}; widest spread {:.0f} %", Version(),
      date.data(), cluster.device.name, world.world_size, TORCH_VERSION, 100 * widest);
}

}  // namespace

Calibration Calibrate(RankWorld& world, const CalibrateOptions& options) {
  Calibration found;
  Cluster& cluster = found.cluster;
  const Sizes sizes = SizesOf(world.device, options.quick);
  const Stopwatch watch(world, sizes.effort);
  const bool cuda = world.device.is_cuda();
  const int64_t sharing = cuda ? 1 : world.world_size;
  cluster.name = HostName();
  cluster.devices_per_node = cuda ? world.world_size : 1;
  cluster.host.cores = ReadHostCores().usable();
  Describe(world.device, cluster.host.cores, cluster.device);
  MeasureCompute(watch, sizes, sharing, cluster.device, found.figures);
  AddPeak(cluster.device);
  MeasureHostLink(watch, sizes, sharing, cluster.host_link, found.figures);
  if (world.world_size > 1) MeasureLinks(watch, sizes, cluster, found.figures);
  if (world.rank == 0) {
    RankWorld alone = Alone(world);
    alone.device = at::kCPU;
    MeasureHostMemory(alone, sizes, cuda ? SystemPageLock() : nullptr, cluster.host, found.figures);
    try {
      if (!options.folder.empty()) MeasureDisk(options.folder, sizes, cluster.disk, found.figures);
    } catch (const Error& error) {  // what else was measured is worth as much
      log::Warn("the disk is not measured: {}", error.what());
    }
  }
  FitEngineFactor(watch, sizes, sharing, cluster, found.figures);
  cluster.source = Source(world, cluster, found.figures);
  return found;
}

}  // namespace trireme::calibrate
