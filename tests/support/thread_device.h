// A device whose streams are threads: what tests of host-staged communication put in a GPU's place. Its tensors lie on
// the CPU, its copies and waits run on the stream that they were enqueued on, after a random while if wanted.
//   ThreadStream stream;  auto device = std::make_unique<ThreadStagingDevice>(ThreadDeviceOptions{});
//   comm->AllReduce(tensor, ReduceOp::kSum, &stream);  stream.Drain();
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "engine/comm/staging_device.h"

namespace trireme::test {

// First in, first out, on a thread of its own. The destructor does what was enqueued.
class ThreadStream {
 public:
  ThreadStream();
  ~ThreadStream();
  void Enqueue(std::function<void()> task);
  void Drain();  // waits for all that was enqueued
  bool Idle();

 private:
  void Serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false, stop_ = false;
  std::thread thread_;
};

struct ThreadDeviceOptions {
  bool streams_wait = true;                // false: as a driver without waits for memory
  std::chrono::microseconds max_delay{0};  // before each piece of work of a stream
  uint32_t seed = 1;
};

// The stream nullptr stands for the calling thread, as on the CPU.
class ThreadStagingDevice : public StagingDevice {
 public:
  explicit ThreadStagingDevice(ThreadDeviceOptions options);
  ~ThreadStagingDevice() override;

  bool Owns(const at::Tensor& tensor) const override { return tensor.is_cpu(); }
  std::byte* Allocate(int64_t bytes) override;
  void CopyAsync(const void* from, void* to, int64_t bytes, CommStream stream) override;
  Signal SignalAsync(CommStream stream) override;
  bool Signalled(Signal signal) override;
  void Recycle(Signal signal) noexcept override;
  bool StreamsWait(CommStream stream) const override { return options_.streams_wait && stream != nullptr; }
  void AwaitFlagAsync(uint32_t number, CommStream stream) override;
  void SetFlag(uint32_t number) noexcept override;
  void FollowAsync(CommStream stream) override;
  void MarkEnd(CommStream stream) override;
  bool Ended() override;

 private:
  struct Event {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  struct Flag {
    std::mutex mutex;
    std::condition_variable changed;
    uint32_t value = 0;
  };
  void On(CommStream stream, std::function<void()> task);

  const ThreadDeviceOptions options_;
  std::mt19937 random_;  // used by the enqueuing thread
  std::shared_ptr<Flag> flag_;
  std::shared_ptr<Event> end_;
  CommStream last_ = nullptr;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace trireme::test
