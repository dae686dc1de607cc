// What the tests of the store share: a folder of their own, both ways of moving blocks, and a way to break them.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/storage/aligned_memory.h"
#include "engine/storage/block_engine.h"
#include "engine/storage/store.h"

namespace trireme::testing {

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-storage-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  int64_t Entries() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::filesystem::path path_;
};

using Backend = StoreOptions::Backend;
inline std::vector<Backend> Backends() {
  const Folder folder;
  const int64_t bytes = 1;
  const auto any = StateStore::Create({.folder = folder.path()}, std::span(&bytes, 1));
  if (any->description().starts_with("io_uring")) return {Backend::kIoUring, Backend::kThreads};
  return {Backend::kThreads};
}
inline std::string Name(Backend backend) { return backend == Backend::kIoUring ? "io_uring" : "threads"; }

// Bytes that tell their place and their seed.
inline void Fill(std::span<std::byte> memory, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::byte& byte : memory) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
}

// Between the store and the engine that moves its blocks: `result` may replace what the engine says of a task.
class BrokenEngine final : public BlockEngine, private BlockTarget {
 public:
  using Result = std::function<int64_t(const BlockTask&, int64_t result)>;
  BrokenEngine(std::unique_ptr<BlockEngine> engine, Result result)
      : result_(std::move(result)), engine_(std::move(engine)) {}
  void Start(std::span<BlockTask* const> tasks) override {
    {
      const std::lock_guard lock(mutex_);
      for (BlockTask* task : tasks) targets_[task] = std::exchange(task->target, static_cast<BlockTarget*>(this));
    }
    engine_->Start(tasks);
  }

 private:
  void Ended(BlockTask& task, int64_t result) override {
    {
      const std::lock_guard lock(mutex_);
      result = result_(task, result);
      task.target = targets_.extract(&task).mapped();
    }
    task.target->Ended(task, result);
  }

  std::mutex mutex_;
  std::map<BlockTask*, BlockTarget*> targets_;
  Result result_;
  std::unique_ptr<BlockEngine> engine_;  // last: its threads end first
};

inline auto Breaking(BrokenEngine::Result result) {
  return [result = std::move(result)](std::unique_ptr<BlockEngine> engine) -> std::unique_ptr<BlockEngine> {
    return std::make_unique<BrokenEngine>(std::move(engine), result);
  };
}

}  // namespace trireme::testing
