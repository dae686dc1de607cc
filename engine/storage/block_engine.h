// What moves blocks between a file and memory: inside of StateStore. Two kinds, of one behaviour: io_uring, and threads
// with pread and pwrite.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "parsers/config.h"

namespace trireme {

class BlockTarget;

// One read or write. Who starts it keeps it alive until it has ended.
struct BlockTask {
  bool write = false;
  std::byte* memory = nullptr;
  int64_t offset = 0, bytes = 0;
  BlockTarget* target = nullptr;
};

class BlockTarget {
 public:
  virtual ~BlockTarget() = default;
  // From a thread of the engine, once for each task: bytes that were moved (fewer than asked for, perhaps), or -errno.
  // May start further tasks, and end the life of this one.
  virtual void Ended(BlockTask& task, int64_t result) = 0;
};

class BlockEngine {
 public:
  virtual ~BlockEngine() = default;  // all tasks must have ended
  virtual void Start(std::span<BlockTask* const> tasks) = 0;
};

// intra_op_parallelism threads, each with a ring of queue_depth blocks. Null where the kernel refuses, `reason` says
// why. Plain system calls: the four that are needed make a library superfluous.
std::unique_ptr<BlockEngine> MakeUringEngine(int descriptor, const AioConfig& aio, std::string& reason);

// queue_depth x intra_op_parallelism threads, 64 at most, each with one block. single_submit and overlap_events mean
// nothing here.
std::unique_ptr<BlockEngine> MakeThreadEngine(int descriptor, const AioConfig& aio);

// Tasks that wait for a thread of an engine.
class BlockQueue {
 public:
  void Push(std::span<BlockTask* const> tasks);
  // At most `most` tasks. Without `wait` perhaps none; with it none only after Stop.
  std::vector<BlockTask*> Pop(int64_t most, bool wait);
  void Stop();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<BlockTask*> tasks_;
  bool stopped_ = false;
};

}  // namespace trireme
