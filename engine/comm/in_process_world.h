// What the in-process communicators of one world share: groups, who waits where, faults, counts. One mutex guards all
// of it; data is reduced and copied outside it, between Enter and Leave, or while a message is `copying`.
#pragma once
#include <c10/core/ScalarType.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/flight_recorder.h"
#include "engine/comm/in_process.h"

namespace trireme {

// What one rank brings to a collective.
struct Call {
  FlightEntry entry;  // operation, number, dtype, count, root: the same on every rank, or COM011
  ReduceOp reduce = ReduceOp::kSum;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  bool dropped = false;
};

struct Message {
  FlightEntry entry;
  const std::byte* data = nullptr;
  std::vector<std::byte> changed;  // holds the data if a fault changed them
  bool dropped = false;
  bool copying = false;  // the sender must not leave now
  bool done = false;
};

struct InProcessGroup {
  std::string name;
  std::vector<int> ranks;
  std::condition_variable changed;
  std::vector<Call> calls;  // by group rank; valid between Enter and Leave
  std::vector<bool> here;   // who has entered the present phase
  int num_here = 0;
  int64_t phase = 0;                              // counts entries and exits of all
  std::string mismatch;                           // set by the last to enter, if the calls differ
  std::vector<std::optional<FlightEntry>> doing;  // by group rank: the operation that it is in
  std::vector<std::optional<FlightEntry>> last;   // the one before
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> mail;  // (from, to) -> sends not yet received
  int num_joined = 0;
};

enum class WaitResult { kReady, kAborted, kTimedOut };

class InProcessWorldImpl : public InProcessWorld, public std::enable_shared_from_this<InProcessWorldImpl> {
 public:
  InProcessWorldImpl(int size, std::chrono::milliseconds timeout) : size_(size), timeout_(timeout) {}

  int size() const override { return size_; }
  std::unique_ptr<Communicator> MakeCommunicator(std::vector<int> ranks, int my_rank, std::string name) override;
  void Abort(int rank, const std::string& reason) override;
  void Inject(const Fault& fault) override;
  int64_t FaultsHit() const override;
  std::vector<OperationCount> Operations() const override;
  void ResetCounts() override;

  // For the communicators. `rank` is one of the group.
  std::mutex& mutex() { return mutex_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // Counts the operation, returns the faults that it meets, and has slept through those that delay.
  std::vector<Fault> Begin(InProcessGroup& group, const FlightEntry& entry, int rank);
  // Waits until `ready`, which is tried under the lock, holds.
  template <typename Ready>
  WaitResult Wait(std::unique_lock<std::mutex>& lock, InProcessGroup& group, Ready ready) {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    while (!ready()) {
      if (aborted_) return WaitResult::kAborted;
      if (group.changed.wait_until(lock, deadline) == std::cv_status::timeout) {
        return ready() ? WaitResult::kReady : aborted_ ? WaitResult::kAborted : WaitResult::kTimedOut;
      }
    }
    return WaitResult::kReady;
  }
  // Each under the lock.
  bool aborted() const { return aborted_.has_value(); }
  std::string AbortText() const;  // "rank 2 ended the job: ..."
  void AbortLocked(int rank, const std::string& reason);
  std::string Whereabouts(const InProcessGroup& group,
                          int rank) const;  // "rank 2 (in pp0: recv #3 ...; last here: ...)"

 private:
  struct Armed {
    Fault fault;
    std::map<int, int64_t> seen;  // by rank
  };
  struct Failure {
    int rank;
    std::string reason;
  };

  const int size_;
  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::optional<Failure> aborted_;
  std::map<std::pair<std::string, int>, int64_t> generations_;                             // (name, rank)
  std::map<std::pair<std::string, int64_t>, std::shared_ptr<InProcessGroup>> incomplete_;  // (name, generation)
  std::vector<std::weak_ptr<InProcessGroup>> groups_;
  std::vector<Armed> faults_;
  int64_t faults_hit_ = 0;
  struct Count {
    int64_t operations = 0, bytes = 0;
  };
  std::map<std::tuple<std::string, OpKind, int>, Count> counts_;
};

std::unique_ptr<Communicator> MakeInProcessCommunicator(std::shared_ptr<InProcessWorldImpl> world,
                                                        std::shared_ptr<InProcessGroup> group, int my_rank);

}  // namespace trireme
