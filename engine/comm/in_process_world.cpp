#include "engine/comm/in_process_world.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/error.h"

namespace trireme {

std::shared_ptr<InProcessWorld> MakeInProcessWorld(int size, std::chrono::milliseconds timeout) {
  TRIREME_CHECK(size >= 1, fmt::format("a world of {} ranks", size));
  return std::make_shared<InProcessWorldImpl>(size, timeout);
}

std::unique_ptr<Communicator> InProcessWorldImpl::MakeCommunicator(std::vector<int> ranks, int my_rank,
                                                                   std::string name) {
  for (const int rank : ranks) {
    TRIREME_CHECK(rank >= 0 && rank < size_, fmt::format("rank {} in a world of {}", rank, size_));
  }
  std::shared_ptr<InProcessGroup> group;
  {
    const std::lock_guard lock(mutex_);
    const int64_t generation = generations_[{name, my_rank}]++;
    std::shared_ptr<InProcessGroup>& entry = incomplete_[{name, generation}];
    if (!entry) {
      entry = std::make_shared<InProcessGroup>();
      entry->name = name;
      entry->ranks = ranks;
      entry->calls.resize(ranks.size());
      entry->here.resize(ranks.size());
      entry->doing.resize(ranks.size());
      entry->last.resize(ranks.size());
      std::erase_if(groups_, [](const auto& weak) { return weak.expired(); });
      groups_.push_back(entry);
    }
    if (entry->ranks != ranks) {
      throw Error(ErrorCode::kCommunication, "COM016",
                  fmt::format("rank {} makes it of the ranks {}, another rank of {}", my_rank, fmt::join(ranks, ", "),
                              fmt::join(entry->ranks, ", ")),
                  "group " + name,
                  "give each set of ranks a name of its own, and make groups in one order on every rank");
    }
    group = entry;
    if (++group->num_joined == static_cast<int>(ranks.size())) incomplete_.erase({name, generation});
  }
  return MakeInProcessCommunicator(shared_from_this(), std::move(group), my_rank);
}

void InProcessWorldImpl::Abort(int rank, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  AbortLocked(rank, reason);
}

void InProcessWorldImpl::AbortLocked(int rank, const std::string& reason) {
  if (aborted_) return;
  aborted_ = Failure{rank, reason.substr(0, reason.find('\n'))};
  for (const auto& weak : groups_) {
    if (const auto group = weak.lock()) group->changed.notify_all();
  }
}

std::string InProcessWorldImpl::AbortText() const {
  return fmt::format("rank {} ended the job: {}", aborted_->rank, aborted_->reason);
}

std::string InProcessWorldImpl::Whereabouts(const InProcessGroup& group, int rank) const {
  const int global_rank = group.ranks[rank];
  std::vector<std::string> facts;
  for (const auto& weak : groups_) {
    const auto other = weak.lock();
    if (!other) continue;
    for (size_t i = 0; i < other->ranks.size(); ++i) {
      if (other->ranks[i] == global_rank && other->doing[i]) {
        facts.push_back(fmt::format("waits in {}: {}", other->name, Describe(*other->doing[i])));
      }
    }
  }
  if (facts.empty()) facts.push_back("in no operation now");
  facts.push_back(group.last[rank] ? "last done here: " + Describe(*group.last[rank]) : "has done none here");
  return fmt::format("rank {} ({})", global_rank, fmt::join(facts, "; "));
}

void InProcessWorldImpl::Inject(const Fault& fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back({fault, {}});
}

int64_t InProcessWorldImpl::FaultsHit() const {
  const std::lock_guard lock(mutex_);
  return faults_hit_;
}

std::vector<OperationCount> InProcessWorldImpl::Operations() const {
  const std::lock_guard lock(mutex_);
  std::vector<OperationCount> all;
  for (const auto& [key, count] : counts_) {
    all.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), count.operations, count.bytes});
  }
  return all;
}

void InProcessWorldImpl::ResetCounts() {
  const std::lock_guard lock(mutex_);
  counts_.clear();
  faults_.clear();
  faults_hit_ = 0;
}

std::vector<Fault> InProcessWorldImpl::Begin(InProcessGroup& group, const FlightEntry& entry, int rank) {
  const OpKind op = entry.op;
  const int global_rank = group.ranks[rank];
  std::vector<Fault> met;
  std::unique_lock lock(mutex_);
  Count& count = counts_[{group.name, op, global_rank}];
  ++count.operations;
  if (entry.dtype) count.bytes += entry.count * static_cast<int64_t>(c10::elementSize(*entry.dtype));
  for (Armed& armed : faults_) {
    const Fault& fault = armed.fault;
    if (!fault.group.empty() && fault.group != group.name) continue;
    if ((fault.op && *fault.op != op) || (fault.rank >= 0 && fault.rank != global_rank)) continue;
    if (armed.seen[global_rank]++ != fault.nth) continue;
    ++faults_hit_;
    met.push_back(fault);
  }
  for (const Fault& fault : met) {
    if (fault.kind != Fault::Kind::kDelay) continue;
    group.changed.wait_for(lock, fault.delay, [&] { return aborted(); });
  }
  return met;
}

}  // namespace trireme
