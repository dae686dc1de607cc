// One rank's place in the job: who it is, on which device, and how it reaches the others.
//   RankWorld world = RankWorld::FromEnvironment("");   // a GPU where there is one, else the CPU
#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/store.h"
#include "engine/plan/plan.h"

namespace trireme {

struct RankWorld {
  int rank = 0, world_size = 1, local_rank = 0;
  int ranks_per_node = 1;  // ranks on this host
  at::Device device = at::kCPU;
  bool shares_gpus = false;      // several ranks on one GPU: communication goes through host memory
  std::shared_ptr<Store> store;  // null in a job of one process, and for ranks that are threads
  // A group that this rank is in; all its ranks (sorted, of the world) make it, in one order on every rank.
  std::function<std::unique_ptr<Communicator>(const std::string& name, const std::vector<int>& ranks)> make_group;
  std::unique_ptr<Communicator> world;  // all ranks

  // RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. `device`: "cpu", "cuda" or "" (a GPU for each rank of this
  // host where it shows any, else the CPU). NCCL on GPUs, Gloo on the CPU. With `oversubscribe`, or if `trireme launch
  // --oversubscribe` says so, ranks share the GPUs there are, over Gloo and host memory, on every host of the job.
  // Throws Error{kCommunication}, Error{kDevice} TRN001 (more ranks than GPUs).
  static RankWorld FromEnvironment(const std::string& device, bool oversubscribe = false);
};

// The groups of one rank (engine/plan: Topology). dp is the world's communicator where that is the same group.
struct RankGroups {
  Communicator* world = nullptr;
  Communicator* dp = nullptr;
  Communicator* tp = nullptr;   // null at tp 1
  Communicator* pp = nullptr;   // one pipeline; null at pp 1
  Communicator* tie = nullptr;  // first and last rank of a pipeline; null where no weight is tied across stages
  std::vector<std::unique_ptr<Communicator>> owned;

  std::vector<Communicator*> All() const;  // each once
};
RankGroups MakeGroups(RankWorld& world, const Plan& plan);

// GPUs that this process can use; 0 in a program without GPU code.
int VisibleGpus();
// Before the first use of a GPU that ranks share. Waits of streams for one another's flags are not visible to CUDA:
// streams that share a hardware queue would hold one another up, so there must be a queue for each.
void PrepareSharedGpus();

// Data of rank 0 for all, and of all ranks for all: metadata only (a few MiB). On lane-less time: at start, save and
// load.
std::string BroadcastText(Communicator& comm, at::Device device, const std::string& text);
std::vector<std::string> GatherTexts(Communicator& comm, at::Device device, const std::string& mine);
// Waits until the device has done what was issued on the default stream and this thread's current one: what the host
// prepared is then visible on every stream. Not the whole device: another rank may share it, and wait for this one.
// Nothing on the CPU.
void Synchronise(at::Device device);
// Sum over all ranks.
double SumOver(Communicator& comm, at::Device device, double mine);

}  // namespace trireme
