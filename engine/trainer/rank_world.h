// One rank's place in the job: who it is, on which device, and how it reaches the others.
//   RankWorld world = RankWorld::FromEnvironment("");   // a GPU where there is one, else the CPU
#pragma once
#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "engine/comm/communicator.h"
#include "engine/comm/store.h"

namespace trireme {

struct RankWorld {
  int rank = 0, world_size = 1, local_rank = 0;
  at::Device device = at::kCPU;
  std::shared_ptr<Store> store;      // null in a job of one process, and for ranks that are threads
  std::unique_ptr<Communicator> dp;  // all ranks: the world, at tp = pp = 1

  // RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. `device`: "cpu", "cuda" or "" (a GPU for each rank of this
  // host where there are enough, else the CPU). NCCL on GPUs, Gloo on the CPU. Throws Error{kCommunication | kDevice}.
  static RankWorld FromEnvironment(const std::string& device);
};

// Data of rank 0 for all, and of all ranks for all: metadata only (a few MiB). On lane-less time: at start, save and
// load.
std::string BroadcastText(Communicator& comm, at::Device device, const std::string& text);
std::vector<std::string> GatherTexts(Communicator& comm, at::Device device, const std::string& mine);
// Waits until the device has done all that was issued: what the host prepared is then visible on every stream. Nothing
// on the CPU.
void Synchronise(at::Device device);
// Sum over all ranks.
double SumOver(Communicator& comm, at::Device device, double mine);

}  // namespace trireme
