#include "engine/trainer/rank_world.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "engine/base/env.h"
#include "engine/base/error.h"
#include "engine/base/host_cores.h"
#include "engine/base/log.h"
#include "engine/comm/backends.h"
#include "engine/comm/host_staged.h"

#ifdef TRIREME_HAS_CUDA
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

namespace trireme {

int VisibleGpus() {
#ifdef TRIREME_HAS_CUDA
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // no driver: not an error of a later call
#endif
  return 0;
}

void PrepareSharedGpus() { env::SetDefault("CUDA_DEVICE_MAX_CONNECTIONS", "32"); }

namespace {

at::Device ChooseDevice(const std::string& wanted, int local_rank, int64_t local_world, bool oversubscribe) {
  const int gpus = VisibleGpus();
  if (oversubscribe && wanted != "cpu" && gpus > 0)
    return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank % gpus));
  // srun --gpus-per-task=1 and the like: each rank is shown a GPU of its own.
  if (wanted != "cpu" && gpus == 1 && local_world > 1 && env::Text("CUDA_VISIBLE_DEVICES"))
    return at::Device(at::kCUDA, 0);
  if (wanted == "cpu" || (wanted.empty() && gpus == 0)) return at::kCPU;
  if (local_rank >= gpus || local_world > gpus) {
    throw Error(ErrorCode::kDevice, "TRN001",
                fmt::format("local rank {} of {} needs a GPU of its own, this host shows {}", local_rank,
                            std::max<int64_t>(local_rank + 1, local_world), gpus),
                wanted.empty() ? "" : "--device " + wanted,
                gpus == 0
                    ? "use --device cpu"
                    : fmt::format("start at most {} ranks on this host, pass --oversubscribe to `trireme launch` or "
                                  "`train` to let ranks share a GPU (for trying layouts), or use --device cpu",
                                  gpus));
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank));
}

at::Tensor Bytes(const std::string& text, int64_t size, at::Device device) {
  at::Tensor bytes = at::zeros({size}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes.to(device);
}

}  // namespace

RankWorld RankWorld::FromEnvironment(const std::string& device, bool oversubscribe) {
  oversubscribe = oversubscribe || env::Flag("TRIREME_OVERSUBSCRIBE");
  if (oversubscribe) PrepareSharedGpus();
  const RendezvousInfo info = RendezvousInfo::FromEnvironment();
  RankWorld world;
  world.rank = info.rank;
  world.world_size = info.world;
  world.local_rank = info.local_rank;
  world.ranks_per_node = info.local_world;
  world.device = ChooseDevice(device, info.local_rank, info.local_world, oversubscribe);
  world.shares_gpus = oversubscribe && world.device.is_cuda();
  if (world.shares_gpus && world.rank == 0) {
    log::Warn(
        "ranks share GPUs (--oversubscribe): communication goes through host memory and Gloo, and the ranks of a "
        "GPU take turns. This is for trying layouts, not for speed");
  }
#ifdef TRIREME_HAS_CUDA
  if (world.device.is_cuda()) cudaSetDevice(world.device.index());
#endif
  if (const auto threads = env::FirstInteger("OMP_NUM_THREADS");
      threads && *threads >= 1 && std::in_range<int>(*threads)) {
    at::set_num_threads(static_cast<int>(*threads));
  } else if (const HostCores cores = ReadHostCores(); cores.quota < cores.allowed) {  // which LibTorch does not see
    at::set_num_threads(std::max(1, cores.usable() / info.local_world));
  }
  world.store = Store::Connect(info);
  world.make_group = [store = world.store, rank = info.rank, cuda = world.device.is_cuda(), shared = world.shares_gpus](
                         const std::string& name, const std::vector<int>& ranks) {
    if (cuda && !shared) return MakeNcclCommunicator(store, ranks, rank, name);
    std::unique_ptr<Communicator> host = MakeGlooCommunicator(store, ranks, rank, name);
    return shared ? MakeHostStagedCommunicator(std::move(host), MakeCudaStagingDevice(GpuSharers::kProcesses))
                  : std::move(host);
  };
  std::vector<int> ranks(static_cast<size_t>(info.world));
  std::iota(ranks.begin(), ranks.end(), 0);
  world.world = world.make_group("world", ranks);
  return world;
}

std::vector<Communicator*> RankGroups::All() const {
  std::vector<Communicator*> all = {world};
  for (const std::unique_ptr<Communicator>& group : owned) all.push_back(group.get());
  return all;
}

RankGroups MakeGroups(RankWorld& world, const Plan& plan) {
  const Topology& topology = plan.topology;
  const Topology::Coordinate own = topology.CoordinateOf(world.rank);
  RankGroups groups;
  groups.world = groups.dp = world.world.get();
  const auto make = [&](const std::string& name, const std::vector<int>& ranks) {
    groups.owned.push_back(world.make_group(name, ranks));
    return groups.owned.back().get();
  };
  if (topology.dp_size < topology.world_size()) {
    std::vector<int> ranks;
    for (int dp = 0; dp < topology.dp_size; ++dp) ranks.push_back(topology.RankOf({own.pp_rank, dp, own.tp_rank}));
    groups.dp = make(fmt::format("dp{}", own.pp_rank * topology.tp_size + own.tp_rank), ranks);
  }
  if (topology.tp_size > 1) {
    std::vector<int> ranks;
    for (int tp = 0; tp < topology.tp_size; ++tp) ranks.push_back(topology.RankOf({own.pp_rank, own.dp_rank, tp}));
    groups.tp = make(fmt::format("tp{}", own.pp_rank * topology.dp_size + own.dp_rank), ranks);
  }
  if (topology.pp_size > 1) {
    std::vector<int> ranks;
    for (int pp = 0; pp < topology.pp_size; ++pp) ranks.push_back(topology.RankOf({pp, own.dp_rank, own.tp_rank}));
    const int pipeline = own.dp_rank * topology.tp_size + own.tp_rank;
    groups.pp = make(fmt::format("pp{}", pipeline), ranks);
    const int first = plan.PpRankOf(0), last = plan.PpRankOf(plan.head());
    if (plan.tied_across_stages() && (own.pp_rank == first || own.pp_rank == last)) {
      groups.tie = make(fmt::format("tie{}", pipeline), {topology.RankOf({first, own.dp_rank, own.tp_rank}),
                                                         topology.RankOf({last, own.dp_rank, own.tp_rank})});
    }
  }
  return groups;
}

void Synchronise(at::Device device) {
#ifdef TRIREME_HAS_CUDA
  if (!device.is_cuda()) return;
  for (const cudaStream_t stream : {cudaStream_t{}, c10::cuda::getCurrentCUDAStream(device.index()).stream()}) {
    const cudaError_t status = cudaStreamSynchronize(stream);
    if (status == cudaSuccess) continue;
    throw Error(ErrorCode::kDevice, "EXE001",
                std::string("cudaStreamSynchronize failed: ") + cudaGetErrorString(status), "",
                "see docs/errors/trainer.md");
  }
#else
  (void)device;
#endif
}

std::vector<std::string> GatherTexts(Communicator& comm, at::Device device, const std::string& mine) {
  if (comm.size() == 1) return {mine};
  at::Tensor size = at::zeros({1}, at::kLong);
  size.fill_(static_cast<int64_t>(mine.size()));
  at::Tensor sizes = at::zeros({comm.size()}, at::TensorOptions().dtype(at::kLong).device(device));
  comm.AllGather(size.to(device), sizes);
  Synchronise(device);
  comm.CheckHealth();
  sizes = sizes.cpu();
  const int64_t* lengths = sizes.const_data_ptr<int64_t>();
  const int64_t longest = std::max<int64_t>(1, *std::max_element(lengths, lengths + comm.size()));
  at::Tensor all = at::zeros({comm.size() * longest}, at::TensorOptions().dtype(at::kByte).device(device));
  comm.AllGather(Bytes(mine, longest, device), all);
  Synchronise(device);
  comm.CheckHealth();
  all = all.cpu();
  std::vector<std::string> texts;
  for (int rank = 0; rank < comm.size(); ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()) + rank * longest,
                       static_cast<size_t>(lengths[rank]));
  }
  return texts;
}

std::string BroadcastText(Communicator& comm, at::Device device, const std::string& text) {
  return GatherTexts(comm, device, comm.rank() == 0 ? text : "")[0];
}

double SumOver(Communicator& comm, at::Device device, double mine) {
  at::Tensor value = at::zeros({1}, at::kDouble);
  value.fill_(mine);
  value = value.to(device);
  if (comm.size() > 1) comm.AllReduce(value, ReduceOp::kSum);
  Synchronise(device);
  comm.CheckHealth();
  return value.item<double>();
}

}  // namespace trireme
