#include "engine/comm/in_process.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/comm/in_process_world.h"
#include "engine/comm/reduce.h"

namespace trireme {
namespace {

constexpr const char* kFixAborted = "see the error of that rank";
constexpr const char* kFixTimeout =
    "look at what the missing ranks do; a rank that left the loop early, or groups used in different orders, end like "
    "this";

class InProcessCommunicator : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<InProcessWorldImpl> world, std::shared_ptr<InProcessGroup> group, int my_rank)
      : Communicator(group->name, group->ranks, my_rank), world_(std::move(world)), group_(std::move(group)) {}

 protected:
  void DoAllReduce(const at::Tensor& inout, ReduceOp op, CommStream, Ticket ticket) override {
    const Call call = MakeCall(OpKind::kAllReduce, &inout, &inout, inout, op, -1, ticket);
    Collective(call, &inout, [&] {
      // Each rank sums one part of the tensor and writes it to all ranks, so nobody reads what another has overwritten.
      const int64_t part = CeilDiv(inout.numel(), size());
      const int64_t begin = std::min(inout.numel(), part * rank());
      const int64_t count = std::min(inout.numel(), begin + part) - begin;
      std::vector<const std::byte*> inputs;
      std::vector<std::byte*> outputs;
      for (const Call& other : group_->calls) {
        if (other.dropped) continue;
        inputs.push_back(other.in + begin * inout.element_size());
        outputs.push_back(other.out + begin * inout.element_size());
      }
      ReduceInOrder(inout.scalar_type(), op, inputs, outputs, count);
    });
  }

  void DoReduceScatter(const at::Tensor& in, const at::Tensor& out, ReduceOp op, CommStream, Ticket ticket) override {
    const Call call = MakeCall(OpKind::kReduceScatter, &in, &out, out, op, -1, ticket);
    Collective(call, &out, [&] {
      if (group_->calls[rank()].dropped) return;
      std::vector<const std::byte*> inputs;
      for (const Call& other : group_->calls) {
        if (!other.dropped) inputs.push_back(other.in + rank() * static_cast<int64_t>(out.nbytes()));
      }
      std::byte* output = Bytes(out);
      ReduceInOrder(out.scalar_type(), op, inputs, {&output, 1}, out.numel());
    });
  }

  void DoAllGather(const at::Tensor& in, const at::Tensor& out, CommStream, Ticket ticket) override {
    const Call call = MakeCall(OpKind::kAllGather, &in, &out, in, ReduceOp::kSum, -1, ticket);
    Collective(call, &out, [&] {
      if (group_->calls[rank()].dropped) return;
      for (int r = 0; r < size(); ++r) {
        const Call& other = group_->calls[r];
        if (!other.dropped) CopyBytes(other.in, Bytes(out) + r * static_cast<int64_t>(in.nbytes()), in.nbytes());
      }
    });
  }

  void DoBroadcast(const at::Tensor& inout, int root, CommStream, Ticket ticket) override {
    const Call call = MakeCall(OpKind::kBroadcast, &inout, &inout, inout, ReduceOp::kSum, root, ticket);
    Collective(call, &inout, [&] {
      const Call& from = group_->calls[root];
      if (group_->calls[rank()].dropped || from.dropped) return;
      CopyBytes(from.in, Bytes(inout), inout.nbytes());
    });
  }

  void DoBarrier(Ticket ticket) override {
    Call call;
    call.entry.op = OpKind::kBarrier;
    call.entry.number = ticket.number;
    Collective(call, nullptr, [] {});
  }

  void DoTransfers(std::span<const Transfer> transfers) override;
  void DoAbort() noexcept override { world_->Abort(global_rank(), "called Abort in group " + name()); }
  bool Accepts(const at::Tensor& tensor) const override { return tensor.is_cpu(); }

 private:
  struct Receive {
    const Transfer* transfer;
    FlightEntry entry;
    std::vector<Fault> faults;
  };

  int global_rank() const { return global_ranks()[rank()]; }
  static std::byte* Bytes(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }
  static void CopyBytes(const std::byte* from, std::byte* to, size_t bytes) {
    if (bytes > 0 && from != to) std::memcpy(to, from, bytes);
  }
  static FlightEntry MakeEntry(OpKind op, const at::Tensor& tensor, int peer, Ticket ticket) {
    FlightEntry entry{.number = ticket.number, .op = op, .count = tensor.numel(), .peer = peer};
    entry.dtype = tensor.scalar_type();
    return entry;
  }
  static Call MakeCall(OpKind op, const at::Tensor* in, const at::Tensor* out, const at::Tensor& counted,
                       ReduceOp reduce, int root, Ticket ticket) {
    return {MakeEntry(op, counted, root, ticket), reduce, static_cast<const std::byte*>(in->const_data_ptr()),
            Bytes(*out), false};
  }
  static void Corrupt(const std::vector<Fault>& faults, const at::Tensor& tensor) {
    CorruptBytes(faults, tensor, Bytes(tensor));
  }
  static void CorruptBytes(const std::vector<Fault>& faults, const at::Tensor& tensor, std::byte* data) {
    for (const Fault& fault : faults) {
      if (fault.kind != Fault::Kind::kCorrupt || tensor.numel() == 0) continue;
      ChangeElement(tensor.scalar_type(), data, fault.element % tensor.numel(), fault.amount);
    }
  }
  static bool Drops(const std::vector<Fault>& faults) {
    return std::any_of(faults.begin(), faults.end(), [](const Fault& f) { return f.kind == Fault::Kind::kDrop; });
  }

  std::vector<Fault> BeginOrThrow(const FlightEntry& entry) {
    std::vector<Fault> faults = world_->Begin(*group_, entry, rank());
    for (const Fault& fault : faults) {
      if (fault.kind != Fault::Kind::kThrow) continue;
      const std::unique_lock lock(world_->mutex());
      FailLocked("COM015", "an injected fault stops " + trireme::Describe(entry), "remove the fault");
    }
    return faults;
  }

  // Throws; with the world's mutex held.
  [[noreturn]] void FailLocked(const char* id, const std::string& what, const std::string& fix) {
    world_->AbortLocked(global_rank(), what);
    Fail(id, what, fix);
  }
  void ThrowIfAborted(const FlightEntry& entry) {
    if (!world_->aborted()) return;
    Fail("COM013", trireme::Describe(entry) + " was given up: " + world_->AbortText(), kFixAborted);
  }

  template <typename Work>
  void Collective(Call call, const at::Tensor* out, Work work) {
    const std::vector<Fault> faults = BeginOrThrow(call.entry);
    call.dropped = Drops(faults);
    Enter(call);
    work();
    Leave();
    if (out) Corrupt(faults, *out);
  }

  void Enter(const Call& call);
  void Leave();
  void Arrive();
  [[noreturn]] void FailTimeout(const FlightEntry& entry);
  std::string FindMismatch() const;
  std::shared_ptr<Message> PostSend(const Transfer& transfer, const std::vector<Fault>& faults,
                                    const FlightEntry& entry);
  bool TakeOne(std::unique_lock<std::mutex>& lock, std::vector<Receive>& receives);
  void AwaitTransfers(std::unique_lock<std::mutex>& lock, std::vector<Receive>& receives,
                      const std::vector<std::shared_ptr<Message>>& sends);

  std::shared_ptr<InProcessWorldImpl> world_;
  std::shared_ptr<InProcessGroup> group_;
};

void InProcessCommunicator::Arrive() {
  group_->here[rank()] = true;
  if (++group_->num_here < size()) return;
  group_->num_here = 0;
  group_->here.assign(group_->here.size(), false);
  ++group_->phase;
  group_->changed.notify_all();
}

void InProcessCommunicator::Enter(const Call& call) {
  std::unique_lock lock(world_->mutex());
  ThrowIfAborted(call.entry);
  group_->calls[rank()] = call;
  group_->doing[rank()] = call.entry;
  if (group_->num_here + 1 == size()) group_->mismatch = FindMismatch();
  const int64_t phase = group_->phase;
  Arrive();
  const WaitResult result = world_->Wait(lock, *group_, [&] { return group_->phase != phase; });
  if (result == WaitResult::kAborted) {
    group_->doing[rank()].reset();
    ThrowIfAborted(call.entry);
  }
  if (result == WaitResult::kTimedOut) FailTimeout(call.entry);
  if (!group_->mismatch.empty()) {
    FailLocked("COM011", "the ranks of the group do not agree: " + group_->mismatch,
               "a rank runs another program, config or data than the others, or left the loop early");
  }
}

// Neither an abort nor a time-out ends this wait: others may still read this rank's tensors, and they never block
// meanwhile.
void InProcessCommunicator::Leave() {
  std::unique_lock lock(world_->mutex());
  group_->last[rank()] = std::exchange(group_->doing[rank()], std::nullopt);
  const int64_t phase = group_->phase;
  Arrive();
  group_->changed.wait(lock, [&] { return group_->phase != phase; });
}

std::string InProcessCommunicator::FindMismatch() const {
  const auto differs = [&](const Call& call) {
    const Call& first = group_->calls[0];
    return call.entry.op != first.entry.op || call.entry.dtype != first.entry.dtype ||
           call.entry.count != first.entry.count || call.entry.peer != first.entry.peer || call.reduce != first.reduce;
  };
  if (std::none_of(group_->calls.begin(), group_->calls.end(), differs)) return "";
  std::vector<std::string> texts;
  for (int r = 0; r < size(); ++r) {
    const Call& call = group_->calls[r];
    texts.push_back(fmt::format("rank {}: {}{}", group_->ranks[r], trireme::Describe(call.entry),
                                call.reduce == ReduceOp::kMax ? " max" : ""));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

void InProcessCommunicator::FailTimeout(const FlightEntry& entry) {
  std::vector<std::string> missing;
  for (int r = 0; r < size(); ++r) {
    if (!group_->here[r]) missing.push_back(world_->Whereabouts(*group_, r));
  }
  FailLocked("COM012",
             fmt::format("{} waited {:.1f} s; missing: {}", trireme::Describe(entry),
                         std::chrono::duration<double>(world_->timeout()).count(), fmt::join(missing, ", ")),
             kFixTimeout);
}

std::shared_ptr<Message> InProcessCommunicator::PostSend(const Transfer& transfer, const std::vector<Fault>& faults,
                                                         const FlightEntry& entry) {
  auto message = std::make_shared<Message>();
  message->entry = entry;
  message->data = static_cast<const std::byte*>(transfer.tensor.const_data_ptr());
  message->dropped = Drops(faults);
  if (std::any_of(faults.begin(), faults.end(), [](const Fault& f) { return f.kind == Fault::Kind::kCorrupt; })) {
    message->changed.assign(message->data, message->data + transfer.tensor.nbytes());
    CorruptBytes(faults, transfer.tensor, message->changed.data());
    message->data = message->changed.data();
  }
  return message;
}

void InProcessCommunicator::DoTransfers(std::span<const Transfer> transfers) {
  std::vector<std::shared_ptr<Message>> sends;
  std::vector<Receive> receives;
  std::vector<int> targets;
  for (const Transfer& transfer : transfers) {
    const FlightEntry entry =
        MakeEntry(transfer.send ? OpKind::kSend : OpKind::kRecv, transfer.tensor, transfer.peer, transfer.ticket);
    std::vector<Fault> faults = BeginOrThrow(entry);
    if (transfer.send) {
      sends.push_back(PostSend(transfer, faults, entry));
      targets.push_back(transfer.peer);
    } else {
      receives.push_back({&transfer, entry, std::move(faults)});
    }
  }
  std::unique_lock lock(world_->mutex());
  for (size_t i = 0; i < sends.size(); ++i) group_->mail[{rank(), targets[i]}].push_back(sends[i]);
  if (!sends.empty()) group_->changed.notify_all();
  try {
    AwaitTransfers(lock, receives, sends);
  } catch (...) {  // a receiver may be reading our data: it must end before the tensors go
    group_->changed.wait(lock, [&] {
      return std::none_of(sends.begin(), sends.end(), [](const auto& message) { return message->copying; });
    });
    for (auto& [ends, queue] : group_->mail) {
      if (ends.first == rank()) queue.clear();
    }
    throw;
  }
  group_->last[rank()] = std::exchange(group_->doing[rank()], std::nullopt);
}

// Receives in whatever order messages come, first in first out for each sender; then waits until its own were taken.
void InProcessCommunicator::AwaitTransfers(std::unique_lock<std::mutex>& lock, std::vector<Receive>& receives,
                                           const std::vector<std::shared_ptr<Message>>& sends) {
  const auto unsent = [&] {
    return std::find_if(sends.begin(), sends.end(), [](const auto& message) { return !message->done; });
  };
  while (true) {
    while (TakeOne(lock, receives)) {
    }
    if (receives.empty() && unsent() == sends.end()) return;
    const FlightEntry& entry = receives.empty() ? (*unsent())->entry : receives.front().entry;
    group_->doing[rank()] = entry;
    const WaitResult result = world_->Wait(lock, *group_, [&] {
      if (receives.empty()) return unsent() == sends.end();
      return std::any_of(receives.begin(), receives.end(), [&](const Receive& r) {
        return !group_->mail[{r.transfer->peer, rank()}].empty();
      });
    });
    if (result == WaitResult::kReady) continue;
    if (result == WaitResult::kAborted) {
      group_->doing[rank()].reset();
      ThrowIfAborted(entry);
    }
    FailLocked(
        "COM012",
        fmt::format("{} waited {:.1f} s; missing: {}", trireme::Describe(entry),
                    std::chrono::duration<double>(world_->timeout()).count(), world_->Whereabouts(*group_, entry.peer)),
        kFixTimeout);
  }
}

bool InProcessCommunicator::TakeOne(std::unique_lock<std::mutex>& lock, std::vector<Receive>& receives) {
  const auto ready = std::find_if(receives.begin(), receives.end(), [&](const Receive& r) {
    return !group_->mail[{r.transfer->peer, rank()}].empty();
  });
  if (ready == receives.end()) return false;
  const Receive receive = *ready;
  receives.erase(ready);
  auto& queue = group_->mail[{receive.transfer->peer, rank()}];
  const std::shared_ptr<Message> message = queue.front();
  queue.pop_front();
  const at::Tensor& out = receive.transfer->tensor;
  if (message->entry.dtype != receive.entry.dtype || message->entry.count != receive.entry.count) {
    FailLocked("COM011",
               fmt::format("the two ranks do not agree: rank {}: {}; rank {}: {}", global_rank(),
                           trireme::Describe(receive.entry), global_ranks()[receive.transfer->peer],
                           trireme::Describe(message->entry)),
               "both ends of a transfer need one dtype and count, and one order of transfers");
  }
  if (!message->dropped && !Drops(receive.faults)) {
    message->copying = true;
    lock.unlock();
    CopyBytes(message->data, Bytes(out), out.nbytes());
    Corrupt(receive.faults, out);
    lock.lock();
    message->copying = false;
  }
  message->done = true;
  group_->changed.notify_all();
  return true;
}

}  // namespace

std::unique_ptr<Communicator> MakeInProcessCommunicator(std::shared_ptr<InProcessWorldImpl> world,
                                                        std::shared_ptr<InProcessGroup> group, int my_rank) {
  return std::make_unique<InProcessCommunicator>(std::move(world), std::move(group), my_rank);
}

}  // namespace trireme
