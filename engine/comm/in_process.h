// Ranks that are threads of one process: real data, fixed order of summation, and faults on demand.
//   auto world = MakeInProcessWorld(4);
//   world->Inject({.group = "dp0", .op = OpKind::kAllReduce, .rank = 2, .nth = 0, .kind = Fault::Kind::kCorrupt});
//   ... in the thread of rank r: auto dp = world->MakeCommunicator({0, 1, 2, 3}, r, "dp0");
// Sums run from the group's rank 0 upwards, in the tensor's dtype for fp32, fp64 and integers, in fp32 and then rounded
// for bf16 and fp16: results do not depend on timing. CPU tensors only. A send waits for its receive (rendezvous). An
// Abort, or an error on one rank, wakes all ranks in all groups of the world with COM013, which names that rank.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace trireme {

struct Fault {
  enum class Kind {
    kDelay,  // sleeps for `delay` before taking part
    kDrop,  // the rank's contribution is missing for the others and its own output stays as it was; nobody waits longer
    kCorrupt,  // `amount` is added to one element of what the rank receives; of what it sends, for kSend
    kThrow,    // the rank throws COM015 instead of taking part
  };
  std::string group = "";                   // "" matches every group
  std::optional<OpKind> op = std::nullopt;  // unset matches every operation
  int rank = -1;                            // rank in the world; -1 matches every rank
  int64_t nth = 0;                          // counts matching operations of one rank from 0
  Kind kind = Kind::kDrop;
  std::chrono::milliseconds delay{100};
  int64_t element = 0;  // modulo the tensor's size
  double amount = 1;
};

// One operation that was begun: what a test needs to enumerate all of them and to aim a Fault at one.
struct OperationCount {
  std::string group;
  OpKind op;
  int rank;       // in the world
  int64_t count;  // how often: nth runs over 0 .. count - 1
  int64_t bytes;  // of all of them together: the tensor of an all-reduce or a transfer, one rank's part of a gather
  bool operator==(const OperationCount&) const = default;
};

class InProcessWorld {
 public:
  virtual ~InProcessWorld() = default;
  virtual int size() const = 0;
  // Does not wait for the other ranks. The communicator keeps the world alive.
  virtual std::unique_ptr<Communicator> MakeCommunicator(std::vector<int> ranks, int my_rank, std::string name) = 0;
  // Wakes all that wait; `reason` stands in their errors. The first call counts.
  virtual void Abort(int rank, const std::string& reason) = 0;

  virtual void Inject(const Fault& fault) = 0;
  virtual int64_t FaultsHit() const = 0;                       // how many injected faults took effect so far
  virtual std::vector<OperationCount> Operations() const = 0;  // sorted; groups of one do nothing and are not counted
  virtual void ResetCounts() = 0;                              // forgets counts and faults
};

std::shared_ptr<InProcessWorld> MakeInProcessWorld(int size, std::chrono::milliseconds timeout = kDefaultCommTimeout);

}  // namespace trireme
