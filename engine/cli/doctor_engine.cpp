// The engine's part of `trireme doctor`: with which libraries it was built and runs, and whether each GPU computes; or,
// as a rank of a job, what it measures.
#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/strings.h"
#include "engine/base/version.h"
#include "engine/calibrate/calibrate.h"
#include "engine/cli/commands.h"
#include "engine/cli/findings.h"
#include "engine/cli/leave.h"
#include "engine/kernels/kernels.h"
#include "parsers/cluster.h"
#include "parsers/flag_set.h"

#ifdef TRIREME_HAS_CUDA
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <exception>
#include <stdexcept>
#endif

namespace trireme::cli {
namespace {

#ifdef TRIREME_HAS_CUDA

std::string VersionText(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

void CudaVersions(Findings& found) {
  int runtime = 0, driver = 0, nccl = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  ncclGetVersion(&nccl);
  // From CUDA 11 on a driver of the same major version is enough.
  const bool old = driver / 1000 < runtime / 1000;
  found.push_back({driver > 0 && old ? Health::kProblem : Health::kOk, "cuda",
                   fmt::format("built with {}, runs with {}, the driver is for {}", VersionText(CUDART_VERSION),
                               VersionText(runtime), driver == 0 ? "none" : VersionText(driver)),
                   "libcudart", old && driver > 0 ? "install a newer driver, or build with an older CUDA" : ""});
  const auto text = [](int v) { return fmt::format("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100); };
  found.push_back({nccl / 10000 == NCCL_MAJOR ? Health::kOk : Health::kWarning, "nccl",
                   fmt::format("built with {}, runs with {}", text(NCCL_VERSION_CODE), text(nccl)), "libnccl",
                   nccl / 10000 == NCCL_MAJOR ? "" : "put the library it was built with first on LD_LIBRARY_PATH"});
}

// A product of matrices whose result is known.
void TryGpu(int gpu, Findings& found) {
  const std::string topic = fmt::format("gpu {}", gpu);
  try {
    cudaDeviceProp properties{};
    if (const cudaError_t status = cudaGetDeviceProperties(&properties, gpu); status != cudaSuccess)
      throw std::runtime_error(cudaGetErrorString(status));
    cudaSetDevice(gpu);
    const auto options = at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu));
    // A product of a library, and a kernel of our own: a device whose architecture is not built in fails there.
    const at::Tensor product = at::mm(at::full({256, 256}, 2, options), at::full({256, 256}, 1, options));
    const at::Tensor sum = at::full({256 * 256}, 512, options);
    kernels::AddInto(product.view({-1}), sum);
    const bool right = sum.cpu().to(at::kFloat).eq(1024).all().item<bool>();
    found.push_back(
        {right ? Health::kOk : Health::kProblem, topic,
         fmt::format("compute capability {}.{}, {} multiprocessors; a product of matrices is {}", properties.major,
                     properties.minor, properties.multiProcessorCount, right ? "right" : "wrong"),
         "", right ? "" : "replace the card: it computes wrongly"});
  } catch (const std::exception& error) {
    found.push_back({Health::kProblem, topic, fmt::format("cannot compute: {}", Split(error.what(), '\n').front()), "",
                     "look at driver and CUDA version above; a GPU whose architecture is not built in needs "
                     "-DCMAKE_CUDA_ARCHITECTURES"});
  }
}

void PeerAccess(int gpus, Findings& found) {
  std::vector<std::string> without;
  for (int a = 0; a < gpus; ++a) {
    for (int b = a + 1; b < gpus; ++b) {
      int there = 0, back = 0;
      cudaDeviceCanAccessPeer(&there, a, b);
      cudaDeviceCanAccessPeer(&back, b, a);
      if (there == 0 || back == 0) without.push_back(fmt::format("{}-{}", a, b));
    }
  }
  if (gpus < 2) return;
  found.push_back({without.empty() ? Health::kOk : Health::kWarning, "peer access",
                   without.empty() ? "between all GPUs" : "not between GPUs " + Join(without, ", "),
                   "cudaDeviceCanAccessPeer",
                   without.empty() ? "" : "NCCL goes through shared memory there; look at ACS and the IOMMU"});
}

void DeviceFindings(Findings& found) {
  CudaVersions(found);
  int gpus = 0;
  const cudaError_t status = cudaGetDeviceCount(&gpus);
  if (status != cudaSuccess) {
    const bool absent = status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver;
    found.push_back({absent ? Health::kOk : Health::kProblem, "cuda",
                     fmt::format("no GPU to use: {}", cudaGetErrorString(status)), "cudaGetDeviceCount",
                     absent ? "" : "look at the driver"});
    cudaGetLastError();
    return;
  }
  for (int gpu = 0; gpu < gpus; ++gpu) TryGpu(gpu, found);
  PeerAccess(gpus, found);
}

#else

void DeviceFindings(Findings& found) {
  found.push_back({Health::kOk, "cuda", "a program for the CPU alone", "trireme-engine", ""});
}

#endif

struct Measuring {
  std::string out, nvme_path = ".";
  bool calibrate = false, quick = false, json = false;
};

// "7.12e+14 FLOP/s", "3.4 GB/s", "5.2 us".
std::string Shown(const calibrate::Figure& figure) {
  if (figure.unit == "s") return fmt::format("{:.4g} us", 1e6 * figure.value);
  if (figure.unit == "B/s") return fmt::format("{:.4g} GB/s", figure.value / 1e9);
  if (figure.unit == "FLOP/s") return fmt::format("{:.4g} TFLOP/s", figure.value / 1e12);
  return fmt::format("{:.4g}", figure.value);
}

constexpr double kRestlessSpread = 0.3;

// A busy machine shows in most figures, not in one.
void WarnIfRestless(const calibrate::Figures& figures) {
  std::vector<double> spreads;
  for (const calibrate::Figure& figure : figures) spreads.push_back(figure.spread);
  std::ranges::sort(spreads);
  const double usual = spreads.empty() ? 0 : spreads[spreads.size() / 2];
  if (usual < kRestlessSpread) return;
  log::Warn(
      "half of the figures spread by {:.0f} % or more: other programs were running. Predictions will be as rough; "
      "measure again when the machine is idle",
      100 * usual);
}

int Measure(const Measuring& request) {
  RankWorld world = RankWorld::FromEnvironment("");
  const calibrate::Calibration found =
      calibrate::Calibrate(world, {.quick = request.quick, .folder = request.nvme_path});
  if (world.rank == 0) {
    WarnIfRestless(found.figures);
    const std::string text = ClusterToJson(found.cluster);
    if (!request.out.empty()) WriteFileDurably(request.out, text, ErrorCode::kEnvironment);
    if (request.json) {
      fmt::print("{}", text);
    } else {
      fmt::print("{}\n", found.cluster.device.name);
      for (const calibrate::Figure& figure : found.figures) {
        fmt::print("  {:<48} {:>18}   spread {:.1f} %\n", figure.what, Shown(figure), 100 * figure.spread);
      }
      fmt::print("{}: `trireme plan --cluster {}` reads it\n", request.out, request.out);
    }
    FlushOutput();
  }
  if (world.store) world.store->Barrier("measured", std::chrono::minutes(1));
  return 0;
}

}  // namespace

int RunDoctor(Arguments arguments) {
  FlagSet flags("doctor");
  Measuring measuring;
  flags.Add("calibrate", "measure", measuring.calibrate);
  flags.Add("out", "FILE", "of the description", measuring.out);
  flags.Add("nvme-path", "DIR", "on the disk to measure", measuring.nvme_path);
  flags.Add("quick", "in seconds", measuring.quick);
  flags.Add("json", "the description alone", measuring.json);
  flags.Parse(arguments);
  if (measuring.calibrate) return Measure(measuring);
  Findings found;
  found.push_back({Health::kOk, "engine",
                   fmt::format("version {}, LibTorch {}, {} threads, Adam on the CPU with {}", Version(), TORCH_VERSION,
                               at::get_num_threads(), kernels::CpuLevel()),
                   "trireme-engine", ""});
  DeviceFindings(found);
  fmt::print("{}", FindingLines(found));
  return 0;
}

}  // namespace trireme::cli
