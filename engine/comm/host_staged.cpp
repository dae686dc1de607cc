#include "engine/comm/host_staged.h"

#include <ATen/ops/from_blob.h>
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/comm/flight_recorder.h"

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kSpin{30};   // a copy that takes longer is asked about now and then
constexpr std::chrono::microseconds kPause{20};  // between two looks
constexpr std::chrono::seconds kFinalize{10};    // given to an orderly end
constexpr uint32_t kForGood = 1u << 30;          // added to the flag when nothing will raise it any more

bool Reached(uint32_t flag, uint32_t number) { return static_cast<int32_t>(flag - number) >= 0; }

class HostStagedCommunicator : public Communicator {
 public:
  HostStagedCommunicator(std::unique_ptr<Communicator> host, std::unique_ptr<StagingDevice> device,
                         int64_t staging_bytes)
      : Communicator(host->name(), host->global_ranks(), host->global_ranks()[static_cast<size_t>(host->rank())]),
        host_(std::move(host)),
        device_(std::move(device)),
        staging_bytes_(staging_bytes) {
    if (size() == 1) return;
    staging_ = device_->Allocate(staging_bytes_);
    worker_ = std::thread([this] { Serve(); });
  }
  ~HostStagedCommunicator() override;

  void set_waits_on_host(bool waits) { waits_on_host_ = waits; }

 protected:
  void DoAllReduce(const at::Tensor& inout, ReduceOp op, CommStream stream, Ticket ticket) override;
  void DoReduceScatter(const at::Tensor& in, const at::Tensor& out, ReduceOp op, CommStream stream,
                       Ticket ticket) override;
  void DoAllGather(const at::Tensor& in, const at::Tensor& out, CommStream stream, Ticket ticket) override;
  void DoBroadcast(const at::Tensor& inout, int root, CommStream stream, Ticket ticket) override;
  void DoTransfers(std::span<const Transfer> transfers) override;
  void DoBarrier(Ticket ticket) override;
  void DoAbort() noexcept override;
  void DoCheckHealth() override {
    const std::lock_guard lock(mutex_);
    ThrowIfFailed();
  }
  bool DoneOnReturn() const override { return false; }
  bool Accepts(const at::Tensor& tensor) const override { return device_->Owns(tensor); }
  void Copy(const at::Tensor& from, const at::Tensor& to, CommStream stream) override {
    if (from.numel() == 0 || from.const_data_ptr() == to.const_data_ptr()) return;
    device_->CopyAsync(from.const_data_ptr(), to.mutable_data_ptr(), static_cast<int64_t>(from.nbytes()), stream);
  }

 private:
  // What the worker does between a copy down and the copy up.
  struct Work {
    uint32_t number = 0;
    StagingDevice::Signal signal = nullptr;  // nullptr: nothing to wait for
    std::string text;
    std::function<void()> run = {};
    std::vector<int64_t> ends = {};  // in the flight recorder
  };
  struct Failure {
    std::string id, what, fix;
  };
  struct Part {
    int64_t begin, count;  // elements of one row
  };

  static const std::byte* Data(const at::Tensor& tensor) {
    return static_cast<const std::byte*>(tensor.const_data_ptr());
  }
  static std::byte* MutableData(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }
  // [count] elements of the tensor's type at an offset of the staging memory.
  static at::Tensor View(std::byte* data, int64_t count, const at::Tensor& like) {
    return at::from_blob(data, {count}, at::TensorOptions().dtype(like.scalar_type()));
  }
  void CopyAsync(const std::byte* from, std::byte* to, int64_t bytes, CommStream stream) {
    if (bytes > 0) device_->CopyAsync(from, to, bytes, stream);
  }

  // Calls `stage` with the parts of a tensor of `rows` rows of `count` elements. Every rank takes the same ones.
  template <typename Stage>
  void InParts(const at::Tensor& tensor, int64_t rows, int64_t count, Stage stage);
  // One round trip: down, run on the host, up. `down` and `up` enqueue copies; `run` runs on the worker.
  template <typename Down, typename Up>
  void RoundTrip(Work work, CommStream stream, Down down, Up up);
  // Under the mutex.
  void ThrowIfFailed() const {
    if (failure_) Fail(failure_->id.c_str(), failure_->what, failure_->fix);
  }
  uint32_t NextNumber();
  void Push(Work work);
  void AwaitHost(uint32_t number);  // by the calling thread
  void Serve();
  bool AwaitSignal(StagingDevice::Signal signal);
  void RunWork(const Work& work);
  void SetFailure(std::string id, std::string what, std::string fix) noexcept;

  const std::unique_ptr<Communicator> host_;
  const std::unique_ptr<StagingDevice> device_;
  const int64_t staging_bytes_;
  std::atomic<bool> waits_on_host_ = false;
  std::byte* staging_ = nullptr;    // of collectives
  std::byte* transfers_ = nullptr;  // of transfers
  int64_t transfers_bytes_ = 0;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<Work> queue_;
  uint32_t issued_ = 0, done_ = 0;
  std::optional<Failure> failure_;
  bool stop_ = false;
  std::thread worker_;
};

HostStagedCommunicator::~HostStagedCommunicator() {
  if (!worker_.joinable()) return;
  bool finished = false;
  {
    std::unique_lock lock(mutex_);
    finished = changed_.wait_for(lock, kFinalize, [&] { return failure_ || done_ == issued_; });
  }
  if (!finished) DoAbort();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

uint32_t HostStagedCommunicator::NextNumber() {
  const std::lock_guard lock(mutex_);
  ThrowIfFailed();
  return ++issued_;
}

void HostStagedCommunicator::Push(Work work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

template <typename Down, typename Up>
void HostStagedCommunicator::RoundTrip(Work work, CommStream stream, Down down, Up up) {
  const uint32_t number = work.number = NextNumber();
  device_->FollowAsync(stream);
  try {
    down();
    work.signal = device_->SignalAsync(stream);
  } catch (const Error& error) {  // the number was given out: nobody may wait for it
    SetFailure(error.id(), error.message(), error.fix());
    throw;
  }
  Push(std::move(work));
  if (device_->StreamsWait(stream) && !waits_on_host_) {
    device_->AwaitFlagAsync(number, stream);
  } else {
    AwaitHost(number);
  }
  up();
  device_->MarkEnd(stream);
}

template <typename Stage>
void HostStagedCommunicator::InParts(const at::Tensor& tensor, int64_t rows, int64_t count, Stage stage) {
  const int64_t most = std::max<int64_t>(1, staging_bytes_ / (rows * tensor.element_size()));
  TRIREME_CHECK(rows * tensor.element_size() <= staging_bytes_, "one element of each rank fits into staging memory");
  int64_t begin = 0;
  do {
    const Part part{begin, std::min(most, count - begin)};
    begin += part.count;
    stage(part, /*last=*/begin == count);
  } while (begin < count);
}

void HostStagedCommunicator::DoAllReduce(const at::Tensor& inout, ReduceOp op, CommStream stream, Ticket ticket) {
  const int64_t element = inout.element_size();
  InParts(inout, 1, inout.numel(), [&](Part part, bool last) {
    const at::Tensor view = View(staging_, part.count, inout);
    Work work{.text = Describe(OpKind::kAllReduce, ticket, &inout)};
    work.run = [this, view, op] { host_->AllReduce(view, op); };
    if (last) work.ends = {ticket.id};
    const int64_t at = part.begin * element, bytes = part.count * element;
    RoundTrip(
        std::move(work), stream, [&] { CopyAsync(Data(inout) + at, staging_, bytes, stream); },
        [&] { CopyAsync(staging_, MutableData(inout) + at, bytes, stream); });
  });
}

void HostStagedCommunicator::DoReduceScatter(const at::Tensor& in, const at::Tensor& out, ReduceOp op,
                                             CommStream stream, Ticket ticket) {
  const int64_t element = in.element_size();
  InParts(in, size(), out.numel(), [&](Part part, bool last) {
    const int64_t at = part.begin * element, bytes = part.count * element;
    std::byte* own = staging_ + rank() * bytes;  // the result takes the place of what this rank brought for itself
    const at::Tensor all = View(staging_, size() * part.count, in), mine = View(own, part.count, in);
    Work work{.text = Describe(OpKind::kReduceScatter, ticket, &out)};
    work.run = [this, all, mine, op] { host_->ReduceScatter(all, mine, op); };
    if (last) work.ends = {ticket.id};
    RoundTrip(
        std::move(work), stream,
        [&] {
          for (int r = 0; r < size(); ++r)
            CopyAsync(Data(in) + r * out.numel() * element + at, staging_ + r * bytes, bytes, stream);
        },
        [&] { CopyAsync(own, MutableData(out) + at, bytes, stream); });
  });
}

void HostStagedCommunicator::DoAllGather(const at::Tensor& in, const at::Tensor& out, CommStream stream,
                                         Ticket ticket) {
  const int64_t element = in.element_size();
  InParts(in, size(), in.numel(), [&](Part part, bool last) {
    const int64_t at = part.begin * element, bytes = part.count * element;
    std::byte* own = staging_ + rank() * bytes;
    const at::Tensor all = View(staging_, size() * part.count, in), mine = View(own, part.count, in);
    Work work{.text = Describe(OpKind::kAllGather, ticket, &in)};
    work.run = [this, all, mine] { host_->AllGather(mine, all); };
    if (last) work.ends = {ticket.id};
    RoundTrip(
        std::move(work), stream, [&] { CopyAsync(Data(in) + at, own, bytes, stream); },
        [&] {
          for (int r = 0; r < size(); ++r)
            CopyAsync(staging_ + r * bytes, MutableData(out) + r * in.numel() * element + at, bytes, stream);
        });
  });
}

void HostStagedCommunicator::DoBroadcast(const at::Tensor& inout, int root, CommStream stream, Ticket ticket) {
  const int64_t element = inout.element_size();
  InParts(inout, 1, inout.numel(), [&](Part part, bool last) {
    const int64_t at = part.begin * element, bytes = part.count * element;
    const at::Tensor view = View(staging_, part.count, inout);
    Work work{.text = Describe(OpKind::kBroadcast, ticket, &inout)};
    work.run = [this, view, root] { host_->Broadcast(view, root); };
    if (last) work.ends = {ticket.id};
    RoundTrip(
        std::move(work), stream,
        [&] {
          if (rank() == root) CopyAsync(Data(inout) + at, staging_, bytes, stream);
        },
        [&] {
          if (rank() != root) CopyAsync(staging_, MutableData(inout) + at, bytes, stream);
        });
  });
}

void HostStagedCommunicator::DoTransfers(std::span<const Transfer> transfers) {
  constexpr int64_t kAlignment = 64;
  const CommStream stream = transfers.front().stream;
  int64_t total = 0;
  std::vector<int64_t> offsets;
  for (const Transfer& transfer : transfers) {
    TRIREME_CHECK(transfer.stream == stream, "transfers of one post on two streams of group " + name());
    offsets.push_back(total);
    total += CeilDiv(static_cast<int64_t>(transfer.tensor.nbytes()), kAlignment) * kAlignment;
  }
  if (total > transfers_bytes_) {                              // posts before this one keep the memory that they have
    transfers_bytes_ = std::max(total, 2 * transfers_bytes_);  // few steps up, where sizes differ from step to step
    transfers_ = device_->Allocate(transfers_bytes_);
  }
  struct Move {
    bool send;
    int peer;
    at::Tensor view;
  };
  std::vector<Move> moves;
  Work work;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& transfer = transfers[i];
    moves.push_back(
        {transfer.send, transfer.peer, View(transfers_ + offsets[i], transfer.tensor.numel(), transfer.tensor)});
    work.text += (i == 0 ? "" : ", ") +
                 Describe(transfer.send ? OpKind::kSend : OpKind::kRecv, transfer.ticket, &transfer.tensor);
    work.ends.push_back(transfer.ticket.id);
  }
  work.run = [this, moves = std::move(moves)] {
    host_->GroupStart();
    for (const Move& move : moves) move.send ? host_->Send(move.view, move.peer) : host_->Recv(move.view, move.peer);
    host_->GroupEnd();
  };
  const auto copy = [&](bool down) {
    for (size_t i = 0; i < transfers.size(); ++i) {
      if (transfers[i].send != down) continue;
      const at::Tensor& tensor = transfers[i].tensor;
      std::byte* staged = transfers_ + offsets[i];
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      down ? CopyAsync(Data(tensor), staged, bytes, stream) : CopyAsync(staged, MutableData(tensor), bytes, stream);
    }
  };
  RoundTrip(
      std::move(work), stream, [&] { copy(true); }, [&] { copy(false); });
}

void HostStagedCommunicator::DoBarrier(Ticket ticket) {
  Work work{.text = Describe(OpKind::kBarrier, ticket, nullptr)};
  work.run = [this] { host_->Barrier(); };
  work.ends = {ticket.id};
  const uint32_t number = work.number = NextNumber();
  Push(std::move(work));
  AwaitHost(number);
  while (!device_->Ended()) {  // the copies up of what was before
    DoCheckHealth();
    std::this_thread::sleep_for(kPause);
  }
}

void HostStagedCommunicator::AwaitHost(uint32_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || Reached(done_, number); });
  ThrowIfFailed();
}

void HostStagedCommunicator::SetFailure(std::string id, std::string what, std::string fix) noexcept {
  const std::lock_guard lock(mutex_);
  if (failure_ || size() == 1) return;
  failure_ = {std::move(id), std::move(what), std::move(fix)};
  device_->SetFlag(issued_ + kForGood);  // also what is enqueued while this happens
  changed_.notify_all();
}

void HostStagedCommunicator::DoAbort() noexcept {
  SetFailure("COM013", "this rank ended the group", "see the first error of this rank");
  host_->Abort();
}

// False: given up, since the group has failed meanwhile.
bool HostStagedCommunicator::AwaitSignal(StagingDevice::Signal signal) {
  const auto begin = Clock::now();
  while (!device_->Signalled(signal)) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return false;
    }
    if (Clock::now() - begin < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
  return true;
}

void HostStagedCommunicator::RunWork(const Work& work) {
  try {
    if (work.signal && !AwaitSignal(work.signal)) return;
    work.run();
    for (const int64_t id : work.ends) recorder().End(id);
  } catch (const Error& error) {
    const std::string& message = error.message();
    SetFailure(error.id(), fmt::format("{} through host memory: {}", work.text, message.substr(0, message.find('\n'))),
               error.fix());
  } catch (const std::exception& error) {
    SetFailure("COM014", fmt::format("{} through host memory: {}", work.text, error.what()),
               "look at the log of the rank that failed first");
  }
}

void HostStagedCommunicator::Serve() {
  device_->EnterThread();
  while (true) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    RunWork(work);
    if (work.signal) device_->Recycle(work.signal);
    {
      const std::lock_guard lock(mutex_);
      done_ = work.number;
      if (!failure_) device_->SetFlag(done_);
    }
    changed_.notify_all();
  }
}

}  // namespace

void WaitOnHost(Communicator& group, bool waits) {
  if (auto* const staged = dynamic_cast<HostStagedCommunicator*>(&group)) staged->set_waits_on_host(waits);
}

std::unique_ptr<Communicator> MakeHostStagedCommunicator(std::unique_ptr<Communicator> host,
                                                         std::unique_ptr<StagingDevice> device, int64_t staging_bytes) {
  return std::make_unique<HostStagedCommunicator>(std::move(host), std::move(device), staging_bytes);
}

}  // namespace trireme
