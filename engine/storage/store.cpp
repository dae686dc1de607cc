#include "engine/storage/store.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/storage/aligned_memory.h"
#include "engine/storage/block_engine.h"

namespace trireme {

namespace {

constexpr int kMostAttempts = 100;  // of a block for which the kernel has no resources; a millisecond apart

// An Error's parts: copies of one exception share memory, and threads would pass it on.
struct Failure {
  std::string id, what, where, fix;
};

Failure FailureOf(const std::string& what, int64_t result, const std::string& where) {
  if (result >= 0) {
    return {"STO004", fmt::format("{} ended after {} bytes", what, result), where,
            "something has cut the file short or the disk is broken: look at the kernel's log, then start again"};
  }
  return {"STO003", fmt::format("{} failed: {}", what, std::strerror(static_cast<int>(-result))), where,
          result == -ENOSPC || result == -EDQUOT
              ? "free room there; this file system cannot reserve it at the start"
              : "look at the kernel's log and the disk's health, or set nvme_path to a folder on another disk"};
}

}  // namespace

struct DiskTransfer::State {
  std::mutex mutex;
  std::condition_variable ended;
  int64_t blocks_left = 0;
  std::optional<Failure> failure;
};

// One block of a transfer; lives until it has ended.
struct StateStore::Block : BlockTask {
  std::shared_ptr<DiskTransfer::State> transfer;
  int section = 0;
  int64_t length = 0;         // of what the caller asked for; bytes of the task are padded
  AlignedMemory copy;         // where the caller's memory or length is not aligned
  std::byte* into = nullptr;  // a read through `copy`: where it goes in the end
  int attempts = 0;
};

DiskTransfer::DiskTransfer() = default;
DiskTransfer::DiskTransfer(std::shared_ptr<State> state) : state_(std::move(state)) {}
DiskTransfer::DiskTransfer(DiskTransfer&&) noexcept = default;

DiskTransfer::~DiskTransfer() {
  if (state_ == nullptr) return;
  std::unique_lock lock(state_->mutex);
  state_->ended.wait(lock, [&] { return state_->blocks_left == 0; });
}

DiskTransfer& DiskTransfer::operator=(DiskTransfer&& other) noexcept {
  DiskTransfer old(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

bool DiskTransfer::Ended() const {
  if (state_ == nullptr) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->blocks_left == 0;
}

void DiskTransfer::Wait() {
  if (state_ == nullptr) return;
  std::unique_lock lock(state_->mutex);
  state_->ended.wait(lock, [&] { return state_->blocks_left == 0; });
  if (!state_->failure) return;
  const auto& [id, what, where, fix] = *state_->failure;
  throw Error(ErrorCode::kEnvironment, id, what, where, fix);
}

StateStore::~StateStore() {
  engine_.reset();
  if (descriptor_ >= 0) ::close(descriptor_);
}

DiskTransfer StateStore::Read(int section, int64_t offset, std::span<std::byte> memory) {
  return Start(/*write=*/false, section, offset, memory.data(), static_cast<int64_t>(memory.size()));
}

DiskTransfer StateStore::Write(int section, int64_t offset, std::span<const std::byte> memory) {
  // Writes only read their memory.
  return Start(/*write=*/true, section, offset, const_cast<std::byte*>(memory.data()),
               static_cast<int64_t>(memory.size()));
}

DiskTransfer StateStore::Start(bool write, int section, int64_t offset, std::byte* memory, int64_t bytes) {
  TRIREME_CHECK(section >= 0 && section < num_sections(), fmt::format("section {} of {}", section, num_sections()));
  const Section& place = sections_[static_cast<size_t>(section)];
  TRIREME_CHECK(offset >= 0 && bytes >= 0 && offset + bytes <= place.bytes,
                fmt::format("bytes {} to {} of section {} with {}", offset, offset + bytes, section, place.bytes));
  TRIREME_CHECK(offset % kStorageAlignment == 0 && (bytes % kStorageAlignment == 0 || offset + bytes == place.bytes),
                fmt::format("{} bytes at {} of section {} with {}: not aligned", bytes, offset, section, place.bytes));
  if (bytes == 0) return {};
  auto state = std::make_shared<DiskTransfer::State>();
  state->blocks_left = CeilDiv(bytes, block_bytes_);
  const bool straight = reinterpret_cast<uintptr_t>(memory) % kStorageAlignment == 0;
  std::vector<BlockTask*> tasks;
  std::vector<std::unique_ptr<Block>> blocks;
  for (int64_t begin = 0; begin < bytes; begin += block_bytes_) {
    auto block = std::make_unique<Block>();
    block->write = write;
    block->length = std::min(block_bytes_, bytes - begin);
    block->bytes = AlignUp(block->length, kStorageAlignment);
    block->offset = place.begin + offset + begin;
    block->memory = memory + begin;
    if (!straight || block->bytes != block->length) {
      block->copy = AlignedMemory(block->bytes);
      block->memory = block->copy.data();
      if (write) {
        std::memcpy(block->memory, memory + begin, static_cast<size_t>(block->length));
      } else {
        block->into = memory + begin;
      }
    }
    block->target = this;
    block->transfer = state;
    block->section = section;
    tasks.push_back(block.get());
    blocks.push_back(std::move(block));
  }
  for (auto& block : blocks) block.release();  // NOLINT(bugprone-unused-return-value): Ended frees them
  engine_->Start(tasks);
  return DiskTransfer(std::move(state));
}

void StateStore::Ended(BlockTask& task, int64_t result) {
  Block& block = static_cast<Block&>(task);
  if ((result == -EAGAIN || result == -EINTR) && ++block.attempts < kMostAttempts) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    BlockTask* const again = &task;
    return engine_->Start({&again, 1});
  }
  // The kernel may move less than was asked for; past the page cache the rest begins at a multiple of the alignment.
  const int64_t moved = std::max<int64_t>(0, result) / kStorageAlignment * kStorageAlignment;
  if (moved > 0 && moved < block.bytes) {
    block.memory += moved;
    block.offset += moved;
    block.bytes -= moved;
    BlockTask* const rest = &task;
    return engine_->Start({&rest, 1});
  }
  std::optional<Failure> failure;
  if (moved < block.bytes) {
    failure = FailureOf(Describe(block), result, folder_.string());
  } else if (block.into != nullptr) {
    std::memcpy(block.into, block.copy.data(), static_cast<size_t>(block.length));
  }
  const std::unique_ptr<Block> owned(&block);
  DiskTransfer::State& state = *owned->transfer;
  const std::lock_guard lock(state.mutex);
  if (failure && !state.failure) state.failure = std::move(failure);
  if (--state.blocks_left == 0) state.ended.notify_all();
}

std::string StateStore::Describe(const Block& block) const {
  return fmt::format("rank {}: {} {} at {} of section {}", rank_, block.write ? "writing" : "reading",
                     FormatBytes(block.bytes), block.offset - sections_[static_cast<size_t>(block.section)].begin,
                     block.section);
}

}  // namespace trireme
