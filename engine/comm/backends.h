// How communicators are made. Each function is called by every rank of the group, groups in one fixed order on every
// rank. `ranks` are ranks in the world, sorted as the group counts them; `my_rank` is one of them. A name may be used
// again after its communicator is gone. For ranks that are threads of one process see in_process.h.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/store.h"

namespace trireme {

// CPU processes. Sums are taken in the group's rank order, in fp32 for 16-bit floats: bitwise those of the in-process
// back end. `store` may be nullptr in a group of one. Abort closes the connections, which the peers see at once.
std::unique_ptr<Communicator> MakeGlooCommunicator(std::shared_ptr<Store> store, std::vector<int> ranks, int my_rank,
                                                   std::string name,
                                                   std::chrono::milliseconds timeout = kDefaultCommTimeout);

// One GPU per rank: the calling thread's current CUDA device. Throws Error{kDevice} COM017 in a program built without
// CUDA.
std::unique_ptr<Communicator> MakeNcclCommunicator(std::shared_ptr<Store> store, std::vector<int> ranks, int my_rank,
                                                   std::string name,
                                                   std::chrono::milliseconds timeout = kDefaultCommTimeout);

}  // namespace trireme
