#include "engine/trainer/rank_world.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "engine/base/env.h"
#include "engine/base/error.h"
#include "engine/comm/backends.h"

#ifdef TRIREME_HAS_CUDA
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

namespace {

at::Device ChooseDevice(const std::string& wanted, int local_rank, int64_t local_world) {
  const int gpus = VisibleGpus();
  // srun --gpus-per-task=1 and the like: each rank is shown a GPU of its own.
  if (wanted != "cpu" && gpus == 1 && local_world > 1 && env::Text("CUDA_VISIBLE_DEVICES"))
    return at::Device(at::kCUDA, 0);
  if (wanted == "cpu" || (wanted.empty() && gpus < std::max<int64_t>(1, local_world))) return at::kCPU;
  if (local_rank >= gpus) {
    throw Error(ErrorCode::kDevice, "TRN001",
                "local rank " + std::to_string(local_rank) + " needs GPU " + std::to_string(local_rank) +
                    ", this host shows " + std::to_string(gpus),
                "--device cuda",
                gpus == 0 ? "use --device cpu"
                          : "start at most " + std::to_string(gpus) + " ranks on this host, or use --device cpu");
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank));
}

at::Tensor Bytes(const std::string& text, int64_t size, at::Device device) {
  at::Tensor bytes = at::zeros({size}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes.to(device);
}

}  // namespace

RankWorld RankWorld::FromEnvironment(const std::string& device) {
  const RendezvousInfo info = RendezvousInfo::FromEnvironment();
  RankWorld world;
  world.rank = info.rank;
  world.world_size = info.world;
  world.local_rank = info.local_rank;
  world.device = ChooseDevice(device, info.local_rank, info.local_world);
#ifdef TRIREME_HAS_CUDA
  if (world.device.is_cuda()) cudaSetDevice(world.device.index());
#endif
  if (const auto threads = env::FirstInteger("OMP_NUM_THREADS");
      threads && *threads >= 1 && std::in_range<int>(*threads))
    at::set_num_threads(static_cast<int>(*threads));
  world.store = Store::Connect(info);
  world.make_group = [store = world.store, rank = info.rank, cuda = world.device.is_cuda()](
                         const std::string& name, const std::vector<int>& ranks) {
    return cuda ? MakeNcclCommunicator(store, ranks, rank, name) : MakeGlooCommunicator(store, ranks, rank, name);
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
  const cudaError_t status = cudaDeviceSynchronize();
  if (status != cudaSuccess) {
    throw Error(ErrorCode::kDevice, "EXE001",
                std::string("cudaDeviceSynchronize failed: ") + cudaGetErrorString(status), "",
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
