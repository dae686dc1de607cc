#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "engine/storage/block_engine.h"

namespace trireme {
namespace {

class ThreadEngine final : public BlockEngine {
 public:
  ThreadEngine(int descriptor, int64_t threads) : descriptor_(descriptor) {
    for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~ThreadEngine() override {
    queue_.Stop();
    for (std::thread& thread : threads_) thread.join();
  }
  void Start(std::span<BlockTask* const> tasks) override { queue_.Push(tasks); }

 private:
  void Work() {
    for (;;) {
      const std::vector<BlockTask*> tasks = queue_.Pop(1, /*wait=*/true);
      if (tasks.empty()) return;
      BlockTask& task = *tasks.front();
      const size_t bytes = static_cast<size_t>(task.bytes);
      const ssize_t moved = task.write ? ::pwrite(descriptor_, task.memory, bytes, task.offset)
                                       : ::pread(descriptor_, task.memory, bytes, task.offset);
      task.target->Ended(task, moved < 0 ? -errno : moved);
    }
  }

  const int descriptor_;
  BlockQueue queue_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockEngine> MakeThreadEngine(int descriptor, const AioConfig& aio) {
  return std::make_unique<ThreadEngine>(descriptor,
                                        std::clamp<int64_t>(aio.queue_depth * aio.intra_op_parallelism, 1, 64));
}

void BlockQueue::Push(std::span<BlockTask* const> tasks) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.insert(tasks_.end(), tasks.begin(), tasks.end());
  }
  if (tasks.size() == 1) {
    changed_.notify_one();
  } else {
    changed_.notify_all();
  }
}

std::vector<BlockTask*> BlockQueue::Pop(int64_t most, bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) changed_.wait(lock, [&] { return stopped_ || !tasks_.empty(); });
  const auto end = tasks_.begin() + std::min(most, static_cast<int64_t>(tasks_.size()));
  std::vector<BlockTask*> taken(tasks_.begin(), end);
  tasks_.erase(tasks_.begin(), end);
  return taken;
}

void BlockQueue::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace trireme
