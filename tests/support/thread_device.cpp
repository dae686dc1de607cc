#include "tests/support/thread_device.h"

#include <cstring>
#include <utility>

namespace trireme::test {

ThreadStream::ThreadStream() : thread_([this] { Serve(); }) {}

ThreadStream::~ThreadStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ThreadStream::Enqueue(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void ThreadStream::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty() && !busy_; });
}

bool ThreadStream::Idle() {
  const std::lock_guard lock(mutex_);
  return tasks_.empty() && !busy_;
}

void ThreadStream::Serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_ = true;
    lock.unlock();
    task();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

ThreadStagingDevice::ThreadStagingDevice(ThreadDeviceOptions options)
    : options_(options), random_(options.seed), flag_(std::make_shared<Flag>()) {}

// As a GPU's, it waits for the copies that use its memory.
ThreadStagingDevice::~ThreadStagingDevice() {
  if (!end_) return;
  std::unique_lock lock(end_->mutex);
  end_->changed.wait(lock, [&] { return end_->done; });
}

std::byte* ThreadStagingDevice::Allocate(int64_t bytes) {
  memory_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(bytes)));
  return memory_.back().get();
}

void ThreadStagingDevice::On(CommStream stream, std::function<void()> task) {
  if (stream == nullptr) return task();
  std::chrono::microseconds delay{0};
  if (options_.max_delay.count() > 0) {
    delay = std::chrono::microseconds(static_cast<int64_t>(random_()) % options_.max_delay.count());
  }
  static_cast<ThreadStream*>(stream)->Enqueue([delay, task = std::move(task)] {
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    task();
  });
}

void ThreadStagingDevice::CopyAsync(const void* from, void* to, int64_t bytes, CommStream stream) {
  On(stream, [=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
}

// The stream may still have to set the signal of a group that was given up: it shares it.
StagingDevice::Signal ThreadStagingDevice::SignalAsync(CommStream stream) {
  auto* signal = new std::shared_ptr<std::atomic<bool>>(std::make_shared<std::atomic<bool>>(false));
  On(stream, [shared = *signal] { shared->store(true, std::memory_order_release); });
  return signal;
}

bool ThreadStagingDevice::Signalled(Signal signal) {
  return (*static_cast<std::shared_ptr<std::atomic<bool>>*>(signal))->load(std::memory_order_acquire);
}

void ThreadStagingDevice::Recycle(Signal signal) noexcept {
  delete static_cast<std::shared_ptr<std::atomic<bool>>*>(signal);
}

void ThreadStagingDevice::AwaitFlagAsync(uint32_t number, CommStream stream) {
  On(stream, [number, flag = flag_] {
    std::unique_lock lock(flag->mutex);
    flag->changed.wait(lock, [&] { return static_cast<int32_t>(flag->value - number) >= 0; });
  });
}

void ThreadStagingDevice::SetFlag(uint32_t number) noexcept {
  {
    const std::lock_guard lock(flag_->mutex);
    flag_->value = number;
  }
  flag_->changed.notify_all();
}

void ThreadStagingDevice::FollowAsync(CommStream stream) {
  if (!end_ || stream == last_) return;
  On(stream, [event = end_] {
    std::unique_lock lock(event->mutex);
    event->changed.wait(lock, [&] { return event->done; });
  });
}

void ThreadStagingDevice::MarkEnd(CommStream stream) {
  end_ = std::make_shared<Event>();
  last_ = stream;
  On(stream, [event = end_] {
    {
      const std::lock_guard lock(event->mutex);
      event->done = true;
    }
    event->changed.notify_all();
  });
}

bool ThreadStagingDevice::Ended() {
  if (!end_) return true;
  const std::lock_guard lock(end_->mutex);
  return end_->done;
}

}  // namespace trireme::test
