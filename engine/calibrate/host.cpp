#include "engine/calibrate/host.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "engine/base/host_memory.h"
#include "engine/storage/aligned_memory.h"
#include "engine/storage/store.h"

#ifdef TRIREME_HAS_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace trireme::calibrate {
namespace {

constexpr int64_t kPiece = int64_t{16} << 20;  // of the disk's file, at a time
constexpr double kDiskSeconds = 2;             // each way, at most
constexpr int64_t kMostCopyElements = int64_t{1} << 26;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void Triad(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, float scale) {
  float* __restrict out = a.mutable_data_ptr<float>();
  const float* __restrict x = b.const_data_ptr<float>();
  const float* __restrict y = c.const_data_ptr<float>();
  at::parallel_for(0, a.numel(), 1 << 16, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = x[i] + scale * y[i];
  });
}

#ifdef TRIREME_HAS_CUDA
// Both ways at once, each on a stream of its own.
void CopyBothWays(at::Device device, const at::Tensor& host_from, const at::Tensor& on_device, const at::Tensor& back,
                  const at::Tensor& host_to) {
  const auto up = c10::cuda::getStreamFromPool(false, device.index()),
             down = c10::cuda::getStreamFromPool(false, device.index());
  {
    const c10::cuda::CUDAStreamGuard guard(up);
    on_device.copy_(host_from, /*non_blocking=*/true);
  }
  {
    const c10::cuda::CUDAStreamGuard guard(down);
    host_to.copy_(back, /*non_blocking=*/true);
  }
  up.synchronize();
  down.synchronize();
}
#endif

}  // namespace

void MeasureHostLink(const Stopwatch& watch, const Sizes& sizes, int64_t sharing, HostLinkDescription& link,
                     Figures& figures) {
  const at::Device device = watch.world().device;
  const int64_t n = std::min(sizes.wide_elements / 4, kMostCopyElements);
  const std::shared_ptr<PageLock> page_lock = device.is_cuda() ? SystemPageLock() : nullptr;
  const at::Tensor host = HostFlat(n, at::kFloat, page_lock);
  const at::Tensor there = at::empty({n}, at::TensorOptions().dtype(at::kFloat).device(device));
  const auto rate = [&](const char* name, const Timing& timing) {
    const double value = static_cast<double>(sharing) * static_cast<double>(host.nbytes()) / timing.seconds;
    figures.push_back({name, value, "B/s", timing.spread});
    return value;
  };
  link.up_bytes_per_second = rate("host to device", watch.Time([&] { there.copy_(host, true); }));
  link.down_bytes_per_second = rate("device to host", watch.Time([&] { host.copy_(there, true); }));
#ifdef TRIREME_HAS_CUDA
  if (!device.is_cuda()) return;
  const at::Tensor host_to = HostFlat(n, at::kFloat, page_lock), back = at::empty_like(there);
  const double both = rate("both ways, each", watch.Time([&] { CopyBothWays(device, host, there, back, host_to); }));
  link.up_duplex_bytes_per_second = std::min(both, link.up_bytes_per_second);
  link.down_duplex_bytes_per_second = std::min(both, link.down_bytes_per_second);
  const at::Tensor little = host.narrow(0, 0, 16), little_there = there.narrow(0, 0, 16);
  const Timing start = watch.Time([&] { little_there.copy_(little, true); });
  link.latency_seconds = start.seconds;
  figures.push_back({"a copy of nothing", start.seconds, "s", start.spread});
#endif
}

void MeasureHostMemory(RankWorld& alone, const Sizes& sizes, const std::shared_ptr<PageLock>& page_lock,
                       HostDescription& host, Figures& figures) {
  const Stopwatch watch(alone, sizes.effort);
  host.memory_bytes = ReadHostMemory().limit;
  const int64_t n = std::min(sizes.wide_elements, kMostCopyElements);
  const at::Tensor a = HostFlat(n, at::kFloat, nullptr), b = HostFlat(n, at::kFloat, nullptr),
                   c = HostFlat(n, at::kFloat, nullptr);
  b.fill_(1);
  c.fill_(2);
  const int threads_before = at::get_num_threads();
  std::vector<int64_t> counts;
  for (int64_t threads = 1; threads < host.cores; threads *= 2) counts.push_back(threads);
  counts.push_back(host.cores);
  for (const int64_t threads : counts) {
    at::set_num_threads(static_cast<int>(threads));
    const Timing timing = watch.Time([&] { Triad(a, b, c, 0.5F); });
    const double rate = 3 * static_cast<double>(a.nbytes()) / timing.seconds;
    host.memory.push_back({threads, rate});
    figures.push_back(
        {fmt::format("memory, {} thread{}", threads, threads == 1 ? "" : "s"), rate, "B/s", timing.spread});
  }
  const int64_t states = sizes.wide_elements / 4;
  const Timing adam = TimeAdam(Stopwatch(alone, sizes.sustained), states, [&](int64_t elements, at::ScalarType type) {
    return HostFlat(elements, type, page_lock);
  });
  host.update_bytes_per_second = static_cast<double>(states) * kAdamBytes / adam.seconds;
  figures.push_back({"Adam on the CPU, all threads", host.update_bytes_per_second, "B/s", adam.spread});
  at::set_num_threads(threads_before);
}

void MeasureDisk(const std::filesystem::path& folder, const Sizes& sizes, DiskDescription& disk, Figures& figures) {
  const int64_t bytes = sizes.disk_bytes;
  const auto store = StateStore::Create({.folder = folder}, std::vector<int64_t>{bytes});
  AlignedMemory memory(kPiece);
  std::ranges::fill(memory.span(), std::byte{0x5a});
  // Bytes a second of pieces, one after the other.
  const auto rate = [&](bool write, const char* name) {
    const double start = Now();
    int64_t done = 0;
    while (done < bytes && Now() - start < kDiskSeconds) {
      const std::span<std::byte> piece = memory.span().first(static_cast<size_t>(std::min(kPiece, bytes - done)));
      DiskTransfer transfer = write ? store->Write(0, done, piece) : store->Read(0, done, piece);
      transfer.Wait();
      done += static_cast<int64_t>(piece.size());
    }
    const double value = static_cast<double>(done) / (Now() - start);
    figures.push_back({fmt::format("disk, {} ({})", name, store->description()), value, "B/s", 0});
    return value;
  };
  disk.write_bytes_per_second = rate(true, "write");
  disk.read_bytes_per_second = rate(false, "read");
}

}  // namespace trireme::calibrate
