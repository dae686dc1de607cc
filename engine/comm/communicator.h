// Communicator: collective operations and transfers of one group of ranks, over NCCL, Gloo, or threads of one process.
//   auto dp = MakeGlooCommunicator(store, {0, 1}, my_rank, "dp0", timeout);
//   dp->AllReduce(gradient, ReduceOp::kSum, stream);
//
// Asynchrony belongs to lanes, not to the communicator: on CUDA tensors an operation is enqueued on `stream` and
// returns at once (the caller keeps the tensors alive and untouched until the stream has passed it); on CPU tensors it
// returns when it is done, and the caller runs it on the lane's own thread. One communicator is used by one lane's
// thread at a time; only Abort, CheckHealth and FlightRecord may be called from any other thread.
//
// Tensors are contiguous, of one device, and of the dtype that travels: no operation converts, pads or resizes. Outputs
// are taken by const reference too, since at::Tensor is a handle: dp->AllReduce(flat.narrow(0, 8, 4), ...) works. Every
// rank of the group calls the same operations in the same order with the same dtype and count.
//
// Errors: Error{kCommunication} with COM010..COM016 (docs/errors/comm.md), each with group, operation and sequence
// number. After one, the communicator is good for nothing but its destructor. A wrong shape or dtype is our bug:
// Error{kInternal}.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

class FlightRecorder;

enum class ReduceOp : uint8_t { kSum, kMax };  // kMax of a NaN is a NaN on the CPU; NCCL leaves that open
enum class OpKind : uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kRecv, kBarrier };
std::string_view Name(OpKind op);  // "all_reduce"

using CommStream = void*;  // cudaStream_t; nullptr on the CPU

inline constexpr std::chrono::milliseconds kDefaultCommTimeout{600'000};

class Communicator {
 public:
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }  // within the group: 0 .. size - 1
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& global_ranks() const { return ranks_; }  // group rank -> rank in the world
  const std::string& name() const { return name_; }                // "dp0"

  // A group of one is legal and costs a copy at most. `count` is numel of the smaller tensor; 0 is legal everywhere.
  void AllReduce(const at::Tensor& inout, ReduceOp op, CommStream stream = nullptr);
  // in: [size * n], out: [n]; `out` may be the own slice of `in`.
  void ReduceScatter(const at::Tensor& in, const at::Tensor& out, ReduceOp op, CommStream stream = nullptr);
  // in: [n], out: [size * n]; `in` may be the own slice of `out` (in place).
  void AllGather(const at::Tensor& in, const at::Tensor& out, CommStream stream = nullptr);
  void Broadcast(const at::Tensor& inout, int root, CommStream stream = nullptr);  // root: rank within the group
  // A send may block until its receive is posted. Exchanges of two ranks are therefore posted in one group.
  void Send(const at::Tensor& tensor, int peer, CommStream stream = nullptr);
  void Recv(const at::Tensor& tensor, int peer, CommStream stream = nullptr);
  void Barrier();  // returns when every rank has entered it, and on the GPU all that this communicator enqueued is done

  // Between the two, sends and receives are only noted, and run together at GroupEnd; collectives are one launch over
  // NCCL and run one by one elsewhere. One group holds transfers or collectives, not both.
  void GroupStart();
  void GroupEnd();

  // Wakes every rank that waits in this group, here and, as far as the back end can, elsewhere; they throw COM013 or
  // COM014.
  void Abort() noexcept;
  // Throws the error that was found after an operation had returned (time-out or failure on a stream), if any.
  void CheckHealth();
  std::string FlightRecord() const;  // the last operations, one a line; stands in every error text as well

 protected:
  // One operation: `id` in the flight recorder; `number` counts the group's collectives, or the transfers of one pair
  // in one direction, so that it is the same on every rank that takes part.
  struct Ticket {
    int64_t id = 0;
    int64_t number = 0;
  };
  struct Transfer {
    bool send;
    at::Tensor tensor;
    int peer;
    CommStream stream;
    Ticket ticket;
  };
  Communicator(std::string name, std::vector<int> ranks, int my_global_rank);

  // Back ends: arguments are checked, and none is called in a group of one.
  virtual void DoAllReduce(const at::Tensor& inout, ReduceOp op, CommStream stream, Ticket ticket) = 0;
  virtual void DoReduceScatter(const at::Tensor& in, const at::Tensor& out, ReduceOp op, CommStream stream,
                               Ticket ticket) = 0;
  virtual void DoAllGather(const at::Tensor& in, const at::Tensor& out, CommStream stream, Ticket ticket) = 0;
  virtual void DoBroadcast(const at::Tensor& inout, int root, CommStream stream, Ticket ticket) = 0;
  virtual void DoTransfers(std::span<const Transfer> transfers) = 0;  // all posted before the first is waited for
  virtual void DoBarrier(Ticket ticket) = 0;
  virtual void DoGroupStart() {}
  virtual void DoGroupEnd() {}
  virtual void DoAbort() noexcept {}
  virtual void DoCheckHealth() {}
  virtual bool Accepts(const at::Tensor& tensor) const = 0;  // the device
  virtual bool DoneOnReturn() const { return true; }         // false: the back end tells the recorder when one ended
  virtual void Copy(const at::Tensor& from, const at::Tensor& to, CommStream stream);  // in a group of one

  FlightRecorder& recorder() const { return *recorder_; }
  // "all_reduce #12 fp32[1024]"; Fail adds group, rank, and the flight record.
  static std::string Describe(OpKind op, Ticket ticket, const at::Tensor* tensor);
  [[noreturn]] void Fail(const char* id, const std::string& what, const std::string& fix) const;

 private:
  void CheckTensor(const at::Tensor& tensor, OpKind op) const;
  void CheckPair(const at::Tensor& small, const at::Tensor& large, OpKind op) const;
  void CheckReducible(const at::Tensor& tensor, OpKind op) const;
  void CheckPeer(int peer, OpKind op, bool self_allowed) const;
  void Post(bool send, const at::Tensor& tensor, int peer, CommStream stream);
  void RunTransfers(std::span<const Transfer> transfers);
  template <typename Function>
  void Record(OpKind op, const at::Tensor* tensor, int peer, Function run);

  std::string name_;
  std::vector<int> ranks_;
  int rank_;
  std::unique_ptr<FlightRecorder> recorder_;
  int64_t num_collectives_ = 0;
  std::vector<int64_t> num_sent_, num_received_;  // by peer
  int group_depth_ = 0;
  std::vector<Transfer> pending_;
};

}  // namespace trireme
