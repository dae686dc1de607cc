// NCCL itself, one communicator for each group. Calls are non-blocking, so a peer that is gone cannot hold the host; a
// watchdog thread looks at the events behind the operations in flight, and ends the communicator when one is late.
#include <cuda_runtime.h>
#include <fmt/core.h>
#include <nccl.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/comm/backends.h"
#include "engine/comm/cuda_query.h"
#include "engine/comm/failure_reports.h"
#include "engine/comm/flight_recorder.h"

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kWatchPause{100};  // between two looks of the watchdog
constexpr milliseconds kStalled{5000};  // an operation in flight for this long asks the store whether a peer has failed
constexpr milliseconds kSpin{5};        // a launch that takes longer is asked about once a millisecond
constexpr milliseconds kFinalize{10'000};  // given to an orderly end

void CheckCuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::kDevice, "COM018", fmt::format("{}: {}", call, cudaGetErrorString(status)), "",
              "run again with CUDA_LAUNCH_BLOCKING=1; an error of an earlier kernel may show up here");
}

struct Type {
  ncclDataType_t type;
  size_t count;
};

// Types that NCCL does not know travel as bytes; they are never reduced.
Type TypeOf(const at::Tensor& tensor) {
  const auto n = static_cast<size_t>(tensor.numel());
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Double:
      return {ncclFloat64, n};
    case c10::ScalarType::Float:
      return {ncclFloat32, n};
    case c10::ScalarType::BFloat16:
      return {ncclBfloat16, n};
    case c10::ScalarType::Half:
      return {ncclFloat16, n};
    case c10::ScalarType::Long:
      return {ncclInt64, n};
    case c10::ScalarType::Int:
      return {ncclInt32, n};
    default:
      return {ncclUint8, tensor.nbytes()};
  }
}

ncclRedOp_t OpOf(ReduceOp op) { return op == ReduceOp::kSum ? ncclSum : ncclMax; }

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<Store> store, std::vector<int> ranks, int my_rank, std::string name,
                   milliseconds timeout)
      : Communicator(std::move(name), std::move(ranks), my_rank), store_(std::move(store)), timeout_(timeout) {
    CheckCuda(cudaGetDevice(&device_), "cudaGetDevice");
    if (size() > 1) Connect();
  }
  ~NcclCommunicator() override;

 protected:
  void DoAllReduce(const at::Tensor& inout, ReduceOp op, CommStream stream, Ticket ticket) override {
    const Type t = TypeOf(inout);
    Launch(OpKind::kAllReduce, ticket, &inout, stream, [&](cudaStream_t s) {
      return ncclAllReduce(inout.const_data_ptr(), inout.mutable_data_ptr(), t.count, t.type, OpOf(op), comm_, s);
    });
  }
  void DoReduceScatter(const at::Tensor& in, const at::Tensor& out, ReduceOp op, CommStream stream,
                       Ticket ticket) override {
    const Type t = TypeOf(out);
    Launch(OpKind::kReduceScatter, ticket, &out, stream, [&](cudaStream_t s) {
      return ncclReduceScatter(in.const_data_ptr(), out.mutable_data_ptr(), t.count, t.type, OpOf(op), comm_, s);
    });
  }
  void DoAllGather(const at::Tensor& in, const at::Tensor& out, CommStream stream, Ticket ticket) override {
    const Type t = TypeOf(in);
    Launch(OpKind::kAllGather, ticket, &in, stream, [&](cudaStream_t s) {
      return ncclAllGather(in.const_data_ptr(), out.mutable_data_ptr(), t.count, t.type, comm_, s);
    });
  }
  void DoBroadcast(const at::Tensor& inout, int root, CommStream stream, Ticket ticket) override {
    const Type t = TypeOf(inout);
    Launch(OpKind::kBroadcast, ticket, &inout, stream, [&](cudaStream_t s) {
      return ncclBroadcast(inout.const_data_ptr(), inout.mutable_data_ptr(), t.count, t.type, root, comm_, s);
    });
  }
  void DoTransfers(std::span<const Transfer> transfers) override;
  void DoBarrier(Ticket ticket) override;
  void DoGroupStart() override;
  void DoGroupEnd() override;
  void DoAbort() noexcept override;
  void DoCheckHealth() override {
    const std::lock_guard lock(mutex_);
    ThrowIfFailed();
  }
  bool DoneOnReturn() const override { return false; }
  bool Accepts(const at::Tensor& tensor) const override { return tensor.is_cuda() && tensor.get_device() == device_; }
  void Copy(const at::Tensor& from, const at::Tensor& to, CommStream stream) override {
    if (from.numel() == 0 || from.const_data_ptr() == to.const_data_ptr()) return;
    CheckCuda(cudaMemcpyAsync(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes(), cudaMemcpyDeviceToDevice,
                              static_cast<cudaStream_t>(stream)),
              "cudaMemcpyAsync");
  }

 private:
  struct Flight {
    int64_t id;  // in the flight recorder
    std::string text;
    cudaStream_t stream;
    cudaEvent_t event;
    Clock::time_point begin;
  };
  struct Failure {
    std::string id, what, fix;
  };

  int global_rank() const { return global_ranks()[rank()]; }
  void Connect();
  ncclUniqueId ExchangeId();
  template <typename Call>
  void Launch(OpKind op, Ticket ticket, const at::Tensor* tensor, CommStream stream, Call call);
  // Under the mutex.
  void ThrowIfFailed() const {
    if (failure_) Fail(failure_->id.c_str(), failure_->what, failure_->fix);
  }
  // Waits while NCCL says 'in progress', letting the mutex go meanwhile. Throws COM012, COM014, or what has failed
  // since.
  void Settle(std::unique_lock<std::mutex>& lock, ncclResult_t result, const std::string& text);
  [[noreturn]] void Report(std::unique_lock<std::mutex>& lock, const char* id, const std::string& text,
                           const std::string& what, const std::string& fix);
  void Track(Flight flight);
  cudaEvent_t TakeEvent();
  // The watchdog's.
  void Watch();
  void Look();
  void End(const std::string& id, const std::string& text, const std::string& what, const std::string& fix);
  void Kill() noexcept;
  // Ends the communicator now, or, while operations wait in an open group of NCCL, when the group closes or the
  // watchdog finds it still open after kStalled (its thread has left it, or waits for a kernel that only this frees).
  void KillWhenClosed() noexcept {
    if (!grouped_) Kill();
  }
  // Closes the group that this thread has open, if any. What it held may be issued: for a communicator that goes on to
  // fail.
  ncclResult_t CloseGroup() noexcept;

  std::shared_ptr<Store> store_;
  milliseconds timeout_;
  int device_ = 0;
  std::string prefix_;
  std::optional<FailureReports> reports_;
  std::mutex mutex_;  // guards all below; never held while something is waited for that a peer does
  ncclComm_t comm_ = nullptr;
  std::optional<Failure> failure_;
  std::deque<Flight> in_flight_;
  std::vector<cudaEvent_t> events_;  // free ones
  Clock::time_point progress_;       // when the watchdog last saw an operation end
  Clock::time_point asked_;          // when it last asked the store
  bool grouped_ = false;             // a group is open on group_thread_, and comm_ may not go
  std::thread::id group_thread_;
  Clock::time_point group_begin_;
  std::vector<Flight> group_flights_;
  cudaStream_t barrier_stream_ = nullptr;
  void* barrier_word_ = nullptr;
  bool stop_ = false;
  std::condition_variable wake_;
  std::thread watchdog_;
};

ncclUniqueId NcclCommunicator::ExchangeId() {
  ncclUniqueId id;
  if (rank() == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) {
      Fail("COM016", fmt::format("ncclGetUniqueId: {}", ncclGetLastError(nullptr)),
           "set NCCL_DEBUG=INFO to see the cause, and NCCL_SOCKET_IFNAME=eth0 to choose the interface");
    }
    store_->Set(prefix_ + "id", std::string_view(id.internal, sizeof id.internal));
    return id;
  }
  try {
    const std::string bytes = store_->Get(prefix_ + "id", timeout_);
    TRIREME_CHECK(bytes.size() == sizeof id.internal, fmt::format("an NCCL id of {} bytes", bytes.size()));
    std::memcpy(id.internal, bytes.data(), bytes.size());
  } catch (const Error& error) {
    if (error.id() != "COM004") throw;
    Fail("COM016",
         fmt::format("rank {} did not come to make the group within {:.1f} s", global_ranks()[0],
                     std::chrono::duration<double>(timeout_).count()),
         "look at that rank's log, and make groups in one order on every rank");
  }
  return id;
}

void NcclCommunicator::Connect() {
  TRIREME_CHECK(store_ != nullptr, fmt::format("group {} of {} ranks without a store", name(), size()));
  prefix_ = fmt::format("nccl/{}/{}/", name(), store_->NextGeneration("nccl/" + name()));
  reports_.emplace(store_, prefix_, global_rank(), global_ranks());
  const ncclUniqueId id = ExchangeId();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  std::unique_lock lock(mutex_);
  try {
    Settle(lock, ncclCommInitRankConfig(&comm_, size(), id, rank(), &config),
           fmt::format("forming the group of {} ranks", size()));
    CheckCuda(cudaStreamCreateWithFlags(&barrier_stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    CheckCuda(cudaMalloc(&barrier_word_, sizeof(int64_t)), "cudaMalloc");
    CheckCuda(cudaMemset(barrier_word_, 0, sizeof(int64_t)), "cudaMemset");
  } catch (...) {
    Kill();
    throw;
  }
  progress_ = asked_ = Clock::now();
  watchdog_ = std::thread([this] { Watch(); });
}

NcclCommunicator::~NcclCommunicator() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake_.notify_all();
  }
  if (watchdog_.joinable()) watchdog_.join();
  const bool left_open = grouped_;  // by an error between the two ends
  CloseGroup();
  if (comm_ && !failure_ && !left_open) {
    ncclCommFinalize(comm_);
    const auto deadline = Clock::now() + kFinalize;
    ncclResult_t state = ncclInProgress;
    while (ncclCommGetAsyncError(comm_, &state) == ncclSuccess && state == ncclInProgress && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (state == ncclSuccess) {
      ncclCommDestroy(comm_);
      comm_ = nullptr;
    }
  }
  Kill();
  for (const Flight& flight : in_flight_) cudaEventDestroy(flight.event);
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  if (barrier_stream_) cudaStreamDestroy(barrier_stream_);
  if (barrier_word_) cudaFree(barrier_word_);
}

void NcclCommunicator::Kill() noexcept {
  if (comm_) ncclCommAbort(comm_);
  comm_ = nullptr;
}

void NcclCommunicator::Settle(std::unique_lock<std::mutex>& lock, ncclResult_t result, const std::string& text) {
  const auto begin = Clock::now(), deadline = begin + timeout_;
  for (int tries = 0; result == ncclInProgress; ++tries) {
    if (Clock::now() > deadline) {
      Report(lock, "COM012", text,
             fmt::format("{} waited {:.1f} s in NCCL", text, std::chrono::duration<double>(timeout_).count()),
             "look at the logs of the other ranks; NCCL_DEBUG=INFO shows what it waits for");
    }
    if (tries > 0) {
      lock.unlock();
      // NCCL hands each launch to a thread of its own: a good one takes some ten microseconds.
      if (Clock::now() - begin < kSpin) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(milliseconds(1));
      }
      lock.lock();
      ThrowIfFailed();  // aborted meanwhile: the communicator is gone
    }
    ncclResult_t state = ncclSuccess;
    result = ncclCommGetAsyncError(comm_, &state);
    if (result == ncclSuccess) result = state;
  }
  if (result == ncclSuccess) return;
  Report(lock, "COM014", text,
         fmt::format("{}: NCCL: {} ({})", text, ncclGetErrorString(result), ncclGetLastError(comm_)),
         "look at the log of the rank that failed first; NCCL_DEBUG=INFO shows more");
}

void NcclCommunicator::Report(std::unique_lock<std::mutex>& lock, const char* id, const std::string& text,
                              const std::string& what, const std::string& fix) {
  lock.unlock();
  End(id, text, what, fix);
  lock.lock();
  Fail(failure_->id.c_str(), failure_->what, failure_->fix);  // the first failure: ours, or one that came between
}

template <typename Call>
void NcclCommunicator::Launch(OpKind op, Ticket ticket, const at::Tensor* tensor, CommStream stream, Call call) {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  std::unique_lock lock(mutex_);
  try {
    ThrowIfFailed();
    Flight flight{ticket.id, Describe(op, ticket, tensor), cuda_stream, nullptr, Clock::now()};
    const ncclResult_t result = call(cuda_stream);
    if (grouped_) {  // runs at the end of the group
      if (result != ncclSuccess && result != ncclInProgress) Settle(lock, result, flight.text);
      group_flights_.push_back(std::move(flight));
      return;
    }
    Settle(lock, result, flight.text);
    Track(std::move(flight));
  } catch (...) {  // whoever opened the group will not come to its end
    CloseGroup();
    if (failure_) KillWhenClosed();
    throw;
  }
}

void NcclCommunicator::DoGroupStart() {
  const std::lock_guard lock(mutex_);
  ThrowIfFailed();
  const ncclResult_t result = ncclGroupStart();
  TRIREME_CHECK(result == ncclSuccess, fmt::format("ncclGroupStart: {}", ncclGetErrorString(result)));
  grouped_ = true;
  group_thread_ = std::this_thread::get_id();
  group_begin_ = Clock::now();
}

ncclResult_t NcclCommunicator::CloseGroup() noexcept {
  if (!grouped_ || group_thread_ != std::this_thread::get_id()) return ncclSuccess;
  grouped_ = false;
  group_flights_.clear();
  return comm_ ? ncclGroupEnd() : ncclSuccess;  // without comm_, what the group holds points to freed memory
}

void NcclCommunicator::DoGroupEnd() {
  std::unique_lock lock(mutex_);
  std::vector<Flight> flights = std::exchange(group_flights_, {});
  const ncclResult_t result = CloseGroup();
  if (failure_) Kill();
  ThrowIfFailed();
  if (flights.empty()) return;
  Settle(lock, result, flights.front().text);
  for (Flight& flight : flights) Track(std::move(flight));
}

void NcclCommunicator::DoTransfers(std::span<const Transfer> transfers) {
  const bool own_group = !grouped_;
  if (own_group) DoGroupStart();
  for (const Transfer& transfer : transfers) {
    const Type t = TypeOf(transfer.tensor);
    const OpKind op = transfer.send ? OpKind::kSend : OpKind::kRecv;
    Launch(op, transfer.ticket, &transfer.tensor, transfer.stream, [&](cudaStream_t s) {
      return transfer.send ? ncclSend(transfer.tensor.const_data_ptr(), t.count, t.type, transfer.peer, comm_, s)
                           : ncclRecv(transfer.tensor.mutable_data_ptr(), t.count, t.type, transfer.peer, comm_, s);
    });
  }
  if (own_group) DoGroupEnd();
}

// NCCL runs the operations of one communicator in order, on whatever streams: behind this one, all before it are done.
void NcclCommunicator::DoBarrier(Ticket ticket) {
  Launch(OpKind::kBarrier, ticket, nullptr, barrier_stream_,
         [&](cudaStream_t s) { return ncclAllReduce(barrier_word_, barrier_word_, 1, ncclInt64, ncclSum, comm_, s); });
  while (true) {  // asked, not synchronised with: the watchdog must be able to end it
    const cudaError_t state = Answer(cudaStreamQuery(barrier_stream_));
    DoCheckHealth();
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) CheckCuda(state, "cudaStreamQuery");
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void NcclCommunicator::DoAbort() noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_ && size() > 1) failure_ = {"COM013", "this rank ended the group", "see the first error of this rank"};
  CloseGroup();
  KillWhenClosed();
}

cudaEvent_t NcclCommunicator::TakeEvent() {
  if (events_.empty()) {
    cudaEvent_t event = nullptr;
    CheckCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    return event;
  }
  const cudaEvent_t event = events_.back();
  events_.pop_back();
  return event;
}

void NcclCommunicator::Track(Flight flight) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  CheckCuda(cudaStreamIsCapturing(flight.stream, &capture), "cudaStreamIsCapturing");
  if (capture != cudaStreamCaptureStatusNone) return recorder().End(flight.id);  // its replays are the graph's owner's
  flight.event = TakeEvent();
  CheckCuda(cudaEventRecord(flight.event, flight.stream), "cudaEventRecord");
  in_flight_.push_back(std::move(flight));
}

void NcclCommunicator::Watch() {
  cudaSetDevice(device_);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // its queries must not spoil a capture of another thread
  cudaThreadExchangeStreamCaptureMode(&mode);
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, kWatchPause, [&] { return stop_; })) return;
      if (failure_) {
        if (comm_ && (!grouped_ || Clock::now() - group_begin_ > kStalled)) Kill();
        continue;
      }
    }
    Look();
  }
}

void NcclCommunicator::Look() {
  std::string late, error;
  Clock::duration age{};
  {
    const std::lock_guard lock(mutex_);
    while (!in_flight_.empty() && cudaEventQuery(in_flight_.front().event) == cudaSuccess) {
      recorder().End(in_flight_.front().id);
      events_.push_back(in_flight_.front().event);
      in_flight_.pop_front();
      progress_ = Clock::now();
    }
    ncclResult_t state = ncclSuccess;
    if (comm_ && !grouped_ && ncclCommGetAsyncError(comm_, &state) == ncclSuccess && state != ncclSuccess &&
        state != ncclInProgress) {
      error = fmt::format("NCCL: {} ({})", ncclGetErrorString(state), ncclGetLastError(comm_));
    }
    if (!in_flight_.empty()) {
      late = in_flight_.front().text;
      age = Clock::now() - std::max(progress_, in_flight_.front().begin);
    }
  }
  const double seconds = std::chrono::duration<double>(age).count();
  const char* fix =
      "look at what the missing ranks do; a rank that left the loop early, or ranks in different operations, end "
      "like this";
  if (!error.empty()) {
    End("COM014", late, fmt::format("{} failed: {}", late, error), "look at the log of the rank that failed first");
  } else if (!late.empty() && age > timeout_) {
    End("COM012", late, fmt::format("{} waited {:.1f} s", late, seconds), fix);
  } else if (!late.empty() && age > kStalled && Clock::now() - asked_ > kStalled) {
    asked_ = Clock::now();
    if (reports_->First()) End("COM013", late, fmt::format("{} was given up after {:.1f} s", late, seconds), fix);
  }
}

void NcclCommunicator::End(const std::string& id, const std::string& text, const std::string& what,
                           const std::string& fix) {
  const std::string reports = reports_->Exchange(text, what, [] {});
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = {id, what + reports, fix};
  // The kernels that wait for the peer leave the GPU, and whoever synchronises with their stream goes on.
  KillWhenClosed();
}

}  // namespace

std::unique_ptr<Communicator> MakeNcclCommunicator(std::shared_ptr<Store> store, std::vector<int> ranks, int my_rank,
                                                   std::string name, milliseconds timeout) {
  return std::make_unique<NcclCommunicator>(std::move(store), std::move(ranks), my_rank, std::move(name), timeout);
}

}  // namespace trireme
