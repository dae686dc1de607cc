// The engine's part of `trireme doctor`: with which libraries it was built and runs, and whether each GPU computes.
#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/strings.h"
#include "engine/base/version.h"
#include "engine/cli/commands.h"
#include "engine/cli/findings.h"
#include "engine/kernels/kernels.h"

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
    const auto options = at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu));
    const at::Tensor product = at::mm(at::full({256, 256}, 2, options), at::full({256, 256}, 1, options)).cpu();
    const bool right = product.to(at::kFloat).eq(512).all().item<bool>();
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

}  // namespace

int RunDoctor(Arguments) {
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
