// Gloo over TCP, of which only sends and receives are used: the collectives are built on them here, because c10d's
// reduce-scatter is an all-reduce of the whole tensor, and its sums of 16-bit floats round after every addition.
#include <ATen/ops/from_blob.h>
#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "engine/base/bytes.h"
#include "engine/base/env.h"
#include "engine/base/error.h"
#include "engine/comm/backends.h"
#include "engine/comm/failure_reports.h"
#include "engine/comm/flight_recorder.h"
#include "engine/comm/reduce.h"
#include "engine/comm/store_impl.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kSmallBytes = 16 << 10;  // up to here every rank sends all it has to all others: one exchange
constexpr int64_t kSegmentBytes = int64_t{4}
                                  << 20;  // longer reductions run in segments, which bounds the scratch memory

// c10d keeps the connections protected; closing them is the only abort that Gloo has.
class OpenGroup : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void CloseConnections() {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

// The local address from which the master is reached: a host name may resolve to an address that other hosts cannot
// see.
std::string LocalAddress(const RendezvousInfo& info) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(info.master_addr.c_str(), std::to_string(info.master_port).c_str(), &hints, &found) != 0) return "";
  std::string address;
  for (const addrinfo* a = found; a && address.empty(); a = a->ai_next) {
    const int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (fd < 0) continue;
    sockaddr_storage local{};
    socklen_t length = sizeof local;
    char host[NI_MAXHOST];
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&local), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0) {
      address = host;
    }
    close(fd);
  }
  freeaddrinfo(found);
  return address;
}

// While it lives, threads that this one starts are scheduled as SCHED_BATCH. Gloo's event loop asks in a circle while a
// sender holds a connection's lock; woken by what that sender just wrote, it took the core from the sender, and turned
// there until the kernel's next tick: 4 ms a transfer, half of a step of tp 2 on two cores. A batch thread takes no
// core from a running one.
class BatchThreads {
 public:
  BatchThreads() {
    usual_ = pthread_getschedparam(pthread_self(), &policy_, &parameters_) == 0 && policy_ == SCHED_OTHER;
    if (usual_) pthread_setschedparam(pthread_self(), SCHED_BATCH, &parameters_);
  }
  ~BatchThreads() {
    if (usual_) pthread_setschedparam(pthread_self(), policy_, &parameters_);
  }
  BatchThreads(const BatchThreads&) = delete;
  BatchThreads& operator=(const BatchThreads&) = delete;

 private:
  int policy_ = SCHED_OTHER;
  sched_param parameters_{};
  bool usual_ = false;  // whoever chose another policy keeps it
};

std::shared_ptr<gloo::transport::Device> MakeDevice(const RendezvousInfo& info) {
  const BatchThreads event_loop;
  if (const auto interface = env::Text("GLOO_SOCKET_IFNAME")) return OpenGroup::createDeviceForInterface(*interface);
  const std::string address = LocalAddress(info);
  return address.empty() ? OpenGroup::createDefaultDevice() : OpenGroup::createDeviceForHostname(address);
}

at::Tensor View(const std::byte* data, int64_t bytes) {
  return at::from_blob(const_cast<std::byte*>(data), {bytes}, at::TensorOptions().dtype(at::kByte));
}

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(std::shared_ptr<Store> store, std::vector<int> ranks, int my_rank, std::string name,
                   milliseconds timeout)
      : Communicator(std::move(name), std::move(ranks), my_rank), store_(std::move(store)), timeout_(timeout) {
    if (size() > 1) Connect();
  }

 protected:
  void DoAllReduce(const at::Tensor& inout, ReduceOp op, CommStream, Ticket ticket) override;
  void DoReduceScatter(const at::Tensor& in, const at::Tensor& out, ReduceOp op, CommStream, Ticket ticket) override;
  void DoAllGather(const at::Tensor& in, const at::Tensor& out, CommStream, Ticket ticket) override;
  void DoBroadcast(const at::Tensor& inout, int root, CommStream, Ticket ticket) override;
  void DoTransfers(std::span<const Transfer> transfers) override;
  void DoBarrier(Ticket ticket) override;
  void DoAbort() noexcept override {
    aborted_ = true;
    CloseAll();
  }
  bool Accepts(const at::Tensor& tensor) const override { return tensor.is_cpu(); }

 private:
  // One operation's messages. Its tag tells operation, number, dtype and count, so that ranks which disagree do not
  // exchange data: they time out, and the reports say who was where.
  struct Exchange {
    std::string text;
    int tag;
  };
  struct Message {
    const Exchange* exchange;
    int peer;
    c10::intrusive_ptr<c10d::Work> work;
  };

  int global_rank() const { return global_ranks()[rank()]; }
  static std::byte* Bytes(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }
  void Connect();
  void CloseAll() noexcept;
  Exchange Open(OpKind op, Ticket ticket, const at::Tensor* tensor) const;
  void PostSend(const Exchange& exchange, int peer, const std::byte* data, int64_t bytes);
  void PostRecv(const Exchange& exchange, int peer, std::byte* data, int64_t bytes);
  template <typename Start>
  void Post(const Exchange& exchange, int peer, Start start);
  void Await();  // all that was posted
  [[noreturn]] void FailExchange(const std::string& text, int peer, const std::string& reason);
  std::byte* Scratch(int64_t bytes);
  // Sums this rank's part; part_of(r) is rank r's part of our tensor. The result is written to `out`.
  void ReducePart(const Exchange& exchange, c10::ScalarType type, ReduceOp op,
                  const std::function<const std::byte*(int)>& part_of, const std::function<int64_t(int)>& count_of,
                  std::byte* out);

  std::shared_ptr<Store> store_;
  milliseconds timeout_;
  std::string prefix_;
  std::optional<FailureReports> reports_;  // set in a group of several ranks
  c10::intrusive_ptr<OpenGroup> group_;
  std::atomic<bool> aborted_ = false;
  std::mutex in_flight_mutex_;
  std::vector<Message> in_flight_;
  std::unique_ptr<std::byte[]> scratch_;
  int64_t scratch_bytes_ = 0;
};

void GlooCommunicator::Connect() {
  TRIREME_CHECK(store_ != nullptr, fmt::format("group {} of {} ranks without a store", name(), size()));
  prefix_ = fmt::format("gloo/{}/{}/", name(), store_->NextGeneration("gloo/" + name()));
  reports_.emplace(store_, prefix_, global_rank(), global_ranks());
  const std::string ranks = fmt::format("{}", fmt::join(global_ranks(), ","));
  store_->Set(prefix_ + "here/" + std::to_string(global_rank()), ranks);
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  for (const int other : global_ranks()) {
    const std::string key = prefix_ + "here/" + std::to_string(other);
    try {
      const auto left = deadline - std::chrono::steady_clock::now();
      const std::string theirs =
          store_->Get(key, std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(left)));
      if (theirs == ranks) continue;
      Fail("COM016", fmt::format("this rank makes it of the ranks {}, rank {} of {}", ranks, other, theirs),
           "give each set of ranks a name of its own, and make groups in one order on every rank");
    } catch (const Error& error) {
      if (error.id() != "COM004") throw;
      Fail("COM016",
           fmt::format("rank {} did not come to make the group within {:.1f} s", other,
                       std::chrono::duration<double>(timeout_).count()),
           "look at that rank's log, and make groups in one order on every rank");
    }
  }
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout_);
    options->devices.push_back(MakeDevice(store_->info()));
    options->threads = 1;
    auto keys = c10::make_intrusive<c10d::PrefixStore>(store_->impl().Key(prefix_ + "mesh"), store_->impl().tcp);
    group_ = c10::make_intrusive<OpenGroup>(keys, rank(), size(), options);
  } catch (const std::exception& error) {
    Fail("COM016", fmt::format("Gloo could not connect the ranks: {}", error.what()),
         "check that every host reaches every other; GLOO_SOCKET_IFNAME=eth0 chooses the interface");
  }
}

GlooCommunicator::Exchange GlooCommunicator::Open(OpKind op, Ticket ticket, const at::Tensor* tensor) const {
  const OpKind pair_op = op == OpKind::kRecv ? OpKind::kSend : op;  // both ends of a transfer share the tag
  uint64_t hash = static_cast<uint64_t>(pair_op) + 1;
  const auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15u + (hash >> 29); };
  mix(static_cast<uint64_t>(ticket.number));
  mix(tensor ? static_cast<uint64_t>(tensor->scalar_type()) : 0);
  mix(tensor ? static_cast<uint64_t>(tensor->numel()) : 0);
  return {Describe(op, ticket, tensor), static_cast<int>(hash >> 34)};
}

template <typename Start>
void GlooCommunicator::Post(const Exchange& exchange, int peer, Start start) {
  try {
    auto work = start();
    const std::lock_guard lock(in_flight_mutex_);
    in_flight_.push_back({&exchange, peer, std::move(work)});
  } catch (const std::exception& error) {
    FailExchange(exchange.text, peer, error.what());
  }
}

void GlooCommunicator::PostSend(const Exchange& exchange, int peer, const std::byte* data, int64_t bytes) {
  if (bytes == 0) return;
  std::vector<at::Tensor> tensors{View(data, bytes)};
  Post(exchange, peer, [&] { return group_->send(tensors, peer, exchange.tag); });
}

void GlooCommunicator::PostRecv(const Exchange& exchange, int peer, std::byte* data, int64_t bytes) {
  if (bytes == 0) return;
  std::vector<at::Tensor> tensors{View(data, bytes)};
  Post(exchange, peer, [&] { return group_->recv(tensors, peer, exchange.tag); });
}

void GlooCommunicator::Await() {
  for (const Message& message : in_flight_) {  // only this thread adds or removes; Abort reads, under the mutex
    try {
      if (!message.work->wait(timeout_)) FailExchange(message.exchange->text, message.peer, "given up");
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      FailExchange(message.exchange->text, message.peer, error.what());
    }
  }
  const std::lock_guard lock(in_flight_mutex_);
  in_flight_.clear();
}

void GlooCommunicator::CloseAll() noexcept {
  try {
    const std::lock_guard lock(in_flight_mutex_);
    for (const Message& message : in_flight_) message.work->abort();
    if (group_) group_->CloseConnections();
  } catch (...) {  // the peers then find out by their time-out
  }
}

void GlooCommunicator::FailExchange(const std::string& text, int peer, const std::string& reason) {
  const int other = global_ranks()[peer];
  const bool was_aborted = aborted_.exchange(true);
  const bool timed_out = reason.find("imed out") != std::string::npos;
  const std::string what =
      was_aborted ? fmt::format("{} was given up: this rank ended the group", text)
      : timed_out
          ? fmt::format("{} waited {:.1f} s for rank {}", text, std::chrono::duration<double>(timeout_).count(), other)
          : fmt::format("{} lost rank {}: {}", text, other, reason.substr(0, reason.find('\n')));
  const std::string reports = reports_->Exchange(text, what, [this] { CloseAll(); });
  {  // gives the buffers back before their tensors go
    const std::lock_guard lock(in_flight_mutex_);
    in_flight_.clear();
  }
  Fail(
      was_aborted ? "COM013"
      : timed_out ? "COM012"
                  : "COM014",
      what + reports,
      timed_out
          ? "look at what the missing ranks do; a rank that left the loop early, or ranks in different operations, end "
            "like this"
          : "look at the log of the rank that failed first");
}

std::byte* GlooCommunicator::Scratch(int64_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_.reset(new std::byte[static_cast<size_t>(bytes)]);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

void GlooCommunicator::ReducePart(const Exchange& exchange, c10::ScalarType type, ReduceOp op,
                                  const std::function<const std::byte*(int)>& part_of,
                                  const std::function<int64_t(int)>& count_of, std::byte* out) {
  const auto element = static_cast<int64_t>(c10::elementSize(type));
  const int64_t mine = count_of(rank());
  std::byte* next = Scratch(mine * element * (size() - 1));
  std::vector<const std::byte*> inputs(size());
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) {
      inputs[r] = part_of(r);
      continue;
    }
    inputs[r] = next;
    PostRecv(exchange, r, next, mine * element);
    PostSend(exchange, r, part_of(r), count_of(r) * element);
    next += mine * element;
  }
  Await();
  ReduceInOrder(type, op, inputs, {&out, 1}, mine);
}

void GlooCommunicator::DoAllReduce(const at::Tensor& inout, ReduceOp op, CommStream, Ticket ticket) {
  const Exchange exchange = Open(OpKind::kAllReduce, ticket, &inout);
  const int64_t element = inout.element_size();
  std::byte* data = Bytes(inout);
  if (static_cast<int64_t>(inout.nbytes()) <= kSmallBytes) {
    return ReducePart(
        exchange, inout.scalar_type(), op, [&](int) { return data; }, [&](int) { return inout.numel(); }, data);
  }
  const int64_t segment = kSegmentBytes / element * size();
  for (int64_t start = 0; start < inout.numel(); start += segment) {
    const int64_t length = std::min(segment, inout.numel() - start);
    const int64_t part = CeilDiv(length, size());
    const auto begin_of = [&](int r) { return std::min(length, part * r); };
    const auto count_of = [&](int r) { return std::min(length, part * (r + 1)) - begin_of(r); };
    const auto part_of = [&](int r) { return data + (start + begin_of(r)) * element; };
    ReducePart(exchange, inout.scalar_type(), op, part_of, count_of, part_of(rank()));
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      PostRecv(exchange, r, part_of(r), count_of(r) * element);
      PostSend(exchange, r, part_of(rank()), count_of(rank()) * element);
    }
    Await();
  }
}

void GlooCommunicator::DoReduceScatter(const at::Tensor& in, const at::Tensor& out, ReduceOp op, CommStream,
                                       Ticket ticket) {
  const Exchange exchange = Open(OpKind::kReduceScatter, ticket, &out);
  const int64_t element = in.element_size();
  const int64_t segment = kSegmentBytes / element;
  for (int64_t start = 0; start < out.numel(); start += segment) {
    const int64_t length = std::min(segment, out.numel() - start);
    ReducePart(
        exchange, in.scalar_type(), op, [&](int r) { return Bytes(in) + (r * out.numel() + start) * element; },
        [&](int) { return length; }, Bytes(out) + start * element);
  }
}

void GlooCommunicator::DoAllGather(const at::Tensor& in, const at::Tensor& out, CommStream, Ticket ticket) {
  const Exchange exchange = Open(OpKind::kAllGather, ticket, &in);
  const auto bytes = static_cast<int64_t>(in.nbytes());
  for (int r = 0; r < size(); ++r) {
    std::byte* slice = Bytes(out) + r * bytes;
    if (r != rank()) {
      PostRecv(exchange, r, slice, bytes);
      PostSend(exchange, r, Bytes(in), bytes);
    } else if (bytes > 0 && slice != Bytes(in)) {
      std::memcpy(slice, Bytes(in), static_cast<size_t>(bytes));
    }
  }
  Await();
}

void GlooCommunicator::DoBroadcast(const at::Tensor& inout, int root, CommStream, Ticket ticket) {
  const Exchange exchange = Open(OpKind::kBroadcast, ticket, &inout);
  const auto bytes = static_cast<int64_t>(inout.nbytes());
  if (rank() != root) PostRecv(exchange, root, Bytes(inout), bytes);
  for (int r = 0; rank() == root && r < size(); ++r) {
    if (r != root) PostSend(exchange, r, Bytes(inout), bytes);
  }
  Await();
}

void GlooCommunicator::DoTransfers(std::span<const Transfer> transfers) {
  std::vector<Exchange> exchanges;
  exchanges.reserve(transfers.size());  // messages point at them
  for (const Transfer& transfer : transfers) {
    const at::Tensor& tensor = transfer.tensor;
    const Exchange& exchange =
        exchanges.emplace_back(Open(transfer.send ? OpKind::kSend : OpKind::kRecv, transfer.ticket, &tensor));
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    transfer.send ? PostSend(exchange, transfer.peer, Bytes(tensor), bytes)
                  : PostRecv(exchange, transfer.peer, Bytes(tensor), bytes);
  }
  Await();
}

void GlooCommunicator::DoBarrier(Ticket ticket) {
  const Exchange exchange = Open(OpKind::kBarrier, ticket, nullptr);
  const std::byte sent{1};
  std::vector<std::byte> received(size());
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    PostRecv(exchange, r, &received[r], 1);
    PostSend(exchange, r, &sent, 1);
  }
  Await();
}

}  // namespace

std::unique_ptr<Communicator> MakeGlooCommunicator(std::shared_ptr<Store> store, std::vector<int> ranks, int my_rank,
                                                   std::string name, milliseconds timeout) {
  return std::make_unique<GlooCommunicator>(std::move(store), std::move(ranks), my_rank, std::move(name), timeout);
}

}  // namespace trireme
