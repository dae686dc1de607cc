#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/execute/lanes.h"

namespace trireme {
namespace {

class CpuLanes : public Lanes {
 public:
  CpuLanes(Runner run, std::function<void()> on_error) : run_(std::move(run)), on_error_(std::move(on_error)) {}

  ~CpuLanes() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (Queue& queue : queues_) {
      if (queue.thread.joinable()) queue.thread.join();
    }
  }

  Ticket Issue(Lane lane, const LaneWork& work, const LaneWaits& waits) override {
    Queue& queue = queues_[static_cast<size_t>(lane)];
    if (lane == Lane::kCompute) {
      RunInline(queue, work, waits);
    } else {
      const std::lock_guard lock(mutex_);
      RethrowLocked();
      queue.pending.push_back({work, waits});
      ++queue.issued;
      if (!queue.thread.joinable()) queue.thread = std::thread([this, &queue] { Serve(queue); });
    }
    changed_.notify_all();
    return {lane, queue.issued};
  }

  void Wait(Ticket ticket) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || queues_[static_cast<size_t>(ticket.lane)].done >= ticket.number; });
    RethrowLocked();
  }

  void Drain() override {
    for (int lane = 0; lane < kNumLanes; ++lane)
      Wait({static_cast<Lane>(lane), queues_[static_cast<size_t>(lane)].issued});
  }

 private:
  struct Item {
    LaneWork work;
    LaneWaits waits;
  };
  struct Queue {
    std::deque<Item> pending;
    uint64_t issued = 0, done = 0;
    std::thread thread;
  };

  bool DoneLocked(const LaneWaits& waits) const {
    for (size_t lane = 0; lane < waits.size(); ++lane) {
      if (queues_[lane].done < waits[lane]) return false;
    }
    return true;
  }

  void RethrowLocked() const {
    if (error_) std::rethrow_exception(error_);
  }

  void RunInline(Queue& queue, const LaneWork& work, const LaneWaits& waits) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return error_ || DoneLocked(waits); });
      RethrowLocked();
    }
    ++queue.issued;
    Execute(queue, work);
    const std::lock_guard lock(mutex_);
    RethrowLocked();
  }

  void Execute(Queue& queue, const LaneWork& work) {
    std::exception_ptr failure;
    try {
      run_(work, nullptr);
    } catch (...) {
      failure = std::current_exception();
    }
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      ++queue.done;
      first = failure && !error_;
      if (first) error_ = failure;
    }
    if (first) on_error_();
    changed_.notify_all();
  }

  void Serve(Queue& queue) {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] {
        return stopping_ || (!error_ && !queue.pending.empty() && DoneLocked(queue.pending.front().waits));
      });
      if (stopping_) return;
      const LaneWork work = queue.pending.front().work;
      queue.pending.pop_front();
      lock.unlock();
      Execute(queue, work);
      lock.lock();
    }
  }

  Runner run_;
  std::function<void()> on_error_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Queue, kNumLanes> queues_;
  std::exception_ptr error_;
  bool stopping_ = false;
};

}  // namespace

std::unique_ptr<Lanes> Lanes::MakeCpu(Runner run, std::function<void()> on_error) {
  return std::make_unique<CpuLanes>(std::move(run), std::move(on_error));
}

}  // namespace trireme
