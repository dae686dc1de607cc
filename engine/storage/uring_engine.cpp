// io_uring by its system calls (man 7 io_uring). The rings are shared with the kernel: one side's head or tail is
// published with release and read with acquire.
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "engine/storage/block_engine.h"

namespace trireme {
namespace {

class Ring {
 public:
  // ok() is false where the kernel refuses; reason() then says why.
  explicit Ring(unsigned depth) {
    io_uring_params params{};
    descriptor_ = static_cast<int>(::syscall(SYS_io_uring_setup, depth, &params));
    if (descriptor_ < 0) {
      reason_ = std::strerror(errno);
      return;
    }
    constexpr unsigned kNeeded = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS;  // Linux 5.6
    if ((params.features & kNeeded) != kNeeded) {
      reason_ = "the kernel is older than 5.6";
      return;
    }
    ring_bytes_ = std::max<size_t>(params.sq_off.array + params.sq_entries * sizeof(unsigned),
                                   params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
    entry_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
    ring_ = Map(ring_bytes_, IORING_OFF_SQ_RING);
    void* entries = ring_ == nullptr ? nullptr : Map(entry_bytes_, IORING_OFF_SQES);
    if (entries == nullptr) return;
    entries_ = static_cast<io_uring_sqe*>(entries);
    tail_ = At<unsigned>(params.sq_off.tail);
    mask_ = *At<unsigned>(params.sq_off.ring_mask);
    array_ = At<unsigned>(params.sq_off.array);
    done_head_ = At<unsigned>(params.cq_off.head);
    done_tail_ = At<unsigned>(params.cq_off.tail);
    done_mask_ = *At<unsigned>(params.cq_off.ring_mask);
    done_ = At<io_uring_cqe>(params.cq_off.cqes);
  }
  ~Ring() {
    if (entries_ != nullptr) ::munmap(entries_, entry_bytes_);
    if (ring_ != nullptr) ::munmap(ring_, ring_bytes_);
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  bool ok() const { return entries_ != nullptr; }
  const std::string& reason() const { return reason_; }

  // Gives the tasks to the kernel in one call; there is room for them. Returns how many it took, or -errno.
  int64_t Submit(int file, std::span<BlockTask* const> tasks) {
    const unsigned tail = *tail_;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const unsigned slot = (tail + static_cast<unsigned>(i)) & mask_;
      io_uring_sqe& entry = entries_[slot];
      std::memset(&entry, 0, sizeof(entry));
      entry.opcode = tasks[i]->write ? IORING_OP_WRITE : IORING_OP_READ;
      entry.fd = file;
      entry.off = static_cast<uint64_t>(tasks[i]->offset);
      entry.addr = reinterpret_cast<uint64_t>(tasks[i]->memory);
      entry.len = static_cast<uint32_t>(tasks[i]->bytes);
      entry.user_data = reinterpret_cast<uint64_t>(tasks[i]);
      array_[slot] = slot;
    }
    std::atomic_ref(*tail_).store(tail + static_cast<unsigned>(tasks.size()), std::memory_order_release);
    const int64_t taken = Enter(static_cast<unsigned>(tasks.size()), 0);
    // What was not taken is taken back.
    const unsigned kept = static_cast<unsigned>(std::max<int64_t>(taken, 0));
    std::atomic_ref(*tail_).store(tail + kept, std::memory_order_release);
    return taken;
  }

  // Waits until `count` or more have ended since the last call, and calls f(task, result) for each that has.
  template <typename F>
  int64_t Reap(unsigned count, F&& f) {
    unsigned head = *done_head_;
    while (std::atomic_ref(*done_tail_).load(std::memory_order_acquire) - head < count) Enter(0, count);
    const unsigned tail = std::atomic_ref(*done_tail_).load(std::memory_order_acquire);
    const int64_t ended = tail - head;
    for (; head != tail; ++head) {
      const io_uring_cqe entry = done_[head & done_mask_];
      std::atomic_ref(*done_head_).store(head + 1, std::memory_order_release);
      f(*reinterpret_cast<BlockTask*>(entry.user_data), static_cast<int64_t>(entry.res));
    }
    return ended;
  }

 private:
  void* Map(size_t bytes, int64_t offset) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor_, offset);
    if (memory != MAP_FAILED) return memory;
    reason_ = std::strerror(errno);
    return nullptr;
  }
  template <typename T>
  T* At(unsigned offset) {
    return reinterpret_cast<T*>(static_cast<std::byte*>(ring_) + offset);
  }
  // As the system call; interrupted calls are repeated.
  int64_t Enter(unsigned submit, unsigned wait) {
    for (;;) {
      const int64_t result =
          ::syscall(SYS_io_uring_enter, descriptor_, submit, wait, wait > 0 ? IORING_ENTER_GETEVENTS : 0, nullptr, 0);
      if (result >= 0) return result;
      if (errno != EINTR) return -errno;
    }
  }

  int descriptor_ = -1;
  std::string reason_;
  void* ring_ = nullptr;
  size_t ring_bytes_ = 0, entry_bytes_ = 0;
  io_uring_sqe* entries_ = nullptr;
  unsigned *tail_ = nullptr, *array_ = nullptr, *done_head_ = nullptr, *done_tail_ = nullptr;
  unsigned mask_ = 0, done_mask_ = 0;
  io_uring_cqe* done_ = nullptr;
};

class UringEngine final : public BlockEngine {
 public:
  UringEngine(int file, const AioConfig& aio, std::vector<std::unique_ptr<Ring>> rings)
      : file_(file), aio_(aio), rings_(std::move(rings)) {
    for (const auto& ring : rings_) threads_.emplace_back([this, &ring = *ring] { Work(ring); });
  }
  ~UringEngine() override {
    queue_.Stop();
    for (std::thread& thread : threads_) thread.join();
  }
  void Start(std::span<BlockTask* const> tasks) override { queue_.Push(tasks); }

 private:
  void Work(Ring& ring) {
    int64_t under_way = 0;
    for (;;) {
      const int64_t room = aio_.overlap_events || under_way == 0 ? aio_.queue_depth - under_way : 0;
      const std::vector<BlockTask*> tasks = queue_.Pop(room, /*wait=*/under_way == 0);
      if (tasks.empty() && under_way == 0) return;
      under_way += Submit(ring, tasks);
      if (under_way == 0) continue;
      const unsigned wait_for = aio_.overlap_events ? 1 : static_cast<unsigned>(under_way);
      under_way -= ring.Reap(wait_for, [](BlockTask& task, int64_t result) { task.target->Ended(task, result); });
    }
  }

  // Returns how many are under way; those that the kernel refused have ended with its errno.
  int64_t Submit(Ring& ring, std::span<BlockTask* const> tasks) {
    int64_t taken = 0;
    while (!tasks.empty()) {
      const int64_t now = ring.Submit(file_, tasks.first(aio_.single_submit ? 1 : tasks.size()));
      if (now > 0) {
        taken += now;
        tasks = tasks.subspan(static_cast<size_t>(now));
      } else {
        tasks.front()->target->Ended(*tasks.front(), now == 0 ? -EAGAIN : now);
        tasks = tasks.subspan(1);
      }
    }
    return taken;
  }

  const int file_;
  const AioConfig aio_;
  std::vector<std::unique_ptr<Ring>> rings_;
  BlockQueue queue_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockEngine> MakeUringEngine(int descriptor, const AioConfig& aio, std::string& reason) {
  std::vector<std::unique_ptr<Ring>> rings;
  for (int64_t i = 0; i < aio.intra_op_parallelism; ++i) {
    rings.push_back(std::make_unique<Ring>(static_cast<unsigned>(aio.queue_depth)));
    if (!rings.back()->ok()) {
      reason = rings.back()->reason();
      return nullptr;
    }
  }
  return std::make_unique<UringEngine>(descriptor, aio, std::move(rings));
}

}  // namespace trireme
