#include "engine/comm/communicator.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/comm/flight_recorder.h"
#include "engine/comm/reduce.h"

namespace trireme {

std::string_view Name(OpKind op) {
  switch (op) {
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kReduceScatter:
      return "reduce_scatter";
    case OpKind::kAllGather:
      return "all_gather";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kSend:
      return "send";
    case OpKind::kRecv:
      return "recv";
    case OpKind::kBarrier:
      return "barrier";
  }
  return "?";
}

Communicator::Communicator(std::string name, std::vector<int> ranks, int my_global_rank)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      recorder_(std::make_unique<FlightRecorder>()),
      num_sent_(ranks_.size(), 0),
      num_received_(ranks_.size(), 0) {
  const auto mine = std::find(ranks_.begin(), ranks_.end(), my_global_rank);
  TRIREME_CHECK(mine != ranks_.end(), fmt::format("rank {} makes group {} without being in it", my_global_rank, name_));
  rank_ = static_cast<int>(mine - ranks_.begin());
  std::vector<int> sorted = ranks_;
  std::sort(sorted.begin(), sorted.end());
  TRIREME_CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
                fmt::format("a rank stands twice in group {}", name_));
}

Communicator::~Communicator() = default;

template <typename Function>
void Communicator::Record(OpKind op, const at::Tensor* tensor, int peer, Function run) {
  TRIREME_CHECK(pending_.empty(), fmt::format("{} {} between the transfers of one group", name_, Name(op)));
  FlightEntry entry{.number = num_collectives_++, .op = op, .peer = peer};
  if (tensor) {
    entry.dtype = tensor->scalar_type();
    entry.count = tensor->numel();
  }
  const Ticket ticket{recorder_->Begin(entry), entry.number};
  run(ticket);
  if (DoneOnReturn()) recorder_->End(ticket.id);
}

void Communicator::AllReduce(const at::Tensor& inout, ReduceOp op, CommStream stream) {
  CheckTensor(inout, OpKind::kAllReduce);
  CheckReducible(inout, OpKind::kAllReduce);
  if (size() == 1) return;
  Record(OpKind::kAllReduce, &inout, -1, [&](Ticket ticket) { DoAllReduce(inout, op, stream, ticket); });
}

void Communicator::ReduceScatter(const at::Tensor& in, const at::Tensor& out, ReduceOp op, CommStream stream) {
  CheckPair(out, in, OpKind::kReduceScatter);
  CheckReducible(in, OpKind::kReduceScatter);
  if (size() == 1) return Copy(in, out, stream);
  Record(OpKind::kReduceScatter, &out, -1, [&](Ticket ticket) { DoReduceScatter(in, out, op, stream, ticket); });
}

void Communicator::AllGather(const at::Tensor& in, const at::Tensor& out, CommStream stream) {
  CheckPair(in, out, OpKind::kAllGather);
  if (size() == 1) return Copy(in, out, stream);
  Record(OpKind::kAllGather, &in, -1, [&](Ticket ticket) { DoAllGather(in, out, stream, ticket); });
}

void Communicator::Broadcast(const at::Tensor& inout, int root, CommStream stream) {
  CheckTensor(inout, OpKind::kBroadcast);
  CheckPeer(root, OpKind::kBroadcast, /*self_allowed=*/true);
  if (size() == 1) return;
  Record(OpKind::kBroadcast, &inout, root, [&](Ticket ticket) { DoBroadcast(inout, root, stream, ticket); });
}

void Communicator::Send(const at::Tensor& tensor, int peer, CommStream stream) { Post(true, tensor, peer, stream); }

void Communicator::Recv(const at::Tensor& tensor, int peer, CommStream stream) { Post(false, tensor, peer, stream); }

void Communicator::Barrier() {
  if (size() == 1) return;
  Record(OpKind::kBarrier, nullptr, -1, [&](Ticket ticket) { DoBarrier(ticket); });
}

void Communicator::Post(bool send, const at::Tensor& tensor, int peer, CommStream stream) {
  const OpKind op = send ? OpKind::kSend : OpKind::kRecv;
  CheckTensor(tensor, op);
  CheckPeer(peer, op, /*self_allowed=*/false);
  FlightEntry entry{.number = (send ? num_sent_ : num_received_)[peer]++, .op = op, .peer = peer};
  entry.dtype = tensor.scalar_type();
  entry.count = tensor.numel();
  const Ticket ticket{recorder_->Begin(entry), entry.number};
  const Transfer transfer{send, tensor, peer, stream, ticket};
  if (group_depth_ > 0) {
    pending_.push_back(transfer);
  } else {
    RunTransfers({&transfer, 1});
  }
}

void Communicator::RunTransfers(std::span<const Transfer> transfers) {
  DoTransfers(transfers);
  if (!DoneOnReturn()) return;
  for (const Transfer& transfer : transfers) recorder_->End(transfer.ticket.id);
}

void Communicator::GroupStart() {
  if (group_depth_++ == 0 && size() > 1) DoGroupStart();
}

void Communicator::GroupEnd() {
  TRIREME_CHECK(group_depth_ > 0, name_ + " ends a group that was not started");
  if (--group_depth_ > 0 || size() == 1) return;
  const std::vector<Transfer> transfers = std::exchange(pending_, {});
  if (!transfers.empty()) RunTransfers(transfers);
  DoGroupEnd();
}

void Communicator::Abort() noexcept { DoAbort(); }

void Communicator::CheckHealth() { DoCheckHealth(); }

std::string Communicator::FlightRecord() const { return recorder_->Text(); }

void Communicator::Copy(const at::Tensor& from, const at::Tensor& to, CommStream) {
  if (from.numel() == 0 || from.const_data_ptr() == to.const_data_ptr()) return;
  std::memmove(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
}

std::string Communicator::Describe(OpKind op, Ticket ticket, const at::Tensor* tensor) {
  std::string text = fmt::format("{} #{}", Name(op), ticket.number);
  if (tensor) text += fmt::format(" {}[{}]", TypeName(tensor->scalar_type()), tensor->numel());
  return text;
}

void Communicator::Fail(const char* id, const std::string& what, const std::string& fix) const {
  std::string text = what;
  const std::string record = recorder_->Text();
  if (!record.empty()) text += "\n  last operations of this rank in " + name_ + ":\n" + record;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  throw Error(ErrorCode::kCommunication, id, text, fmt::format("group {}, rank {}", name_, ranks_[rank_]), fix);
}

void Communicator::CheckTensor(const at::Tensor& tensor, OpKind op) const {
  TRIREME_CHECK(tensor.defined() && tensor.is_contiguous(),
                fmt::format("{} of group {} needs a contiguous tensor", Name(op), name_));
  TRIREME_CHECK(Accepts(tensor), fmt::format("group {} cannot carry a tensor on {}", name_, tensor.device().str()));
}

void Communicator::CheckPair(const at::Tensor& small, const at::Tensor& large, OpKind op) const {
  CheckTensor(small, op);
  CheckTensor(large, op);
  TRIREME_CHECK(
      small.scalar_type() == large.scalar_type() && large.numel() == size() * small.numel(),
      fmt::format("{} of group {} with {} ranks between {}[{}] and {}[{}]", Name(op), name_, size(),
                  TypeName(small.scalar_type()), small.numel(), TypeName(large.scalar_type()), large.numel()));
}

void Communicator::CheckReducible(const at::Tensor& tensor, OpKind op) const {
  TRIREME_CHECK(IsReducible(tensor.scalar_type()),
                fmt::format("{} of group {} on {}", Name(op), name_, TypeName(tensor.scalar_type())));
}

void Communicator::CheckPeer(int peer, OpKind op, bool self_allowed) const {
  TRIREME_CHECK(
      peer >= 0 && peer < size() && (self_allowed || peer != rank()),
      fmt::format("{} of group {} on its rank {} of {} names rank {}", Name(op), name_, rank(), size(), peer));
}

}  // namespace trireme
