// The states of one rank on a disk (offload to NVMe): one file, cut into sections of known size, whose blocks move
// between the disk and the caller's memory while the caller does something else.
//   auto store = StateStore::Create({.folder = nvme_path, .rank = 3, .aio = config.aio}, section_bytes);
//   DiskTransfer read = store->Read(/*section=*/2, /*offset=*/0, memory);
//   ...
//   read.Wait();  // throws what went wrong
//
// The file has no name: the kernel frees it when the process ends, however it ends. So nothing is left of a dead
// process, and any number of runs and ranks share a folder. All its space is taken from the disk at the start: a run
// that began cannot fail for lack of room. A section that was never written reads as zeros.
//
// Blocks go through io_uring, or, where kernel or container refuse that, through a pool of threads; past the page
// cache (O_DIRECT) where the file system can. description() says which.
//
// Errors, Error{kEnvironment}: STO001 no such folder, or no permission; STO002 too little room; STO003 the disk failed;
// STO004 the file ends early; STO006 no io_uring where it was demanded. STO005: aligned_memory.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/storage/block_engine.h"
#include "parsers/config.h"

namespace trireme {

// Offsets are multiples of it, lengths too where they do not end their section. Memory that begins at a multiple of it
// is read and written straight; any other is copied through a block.
constexpr int64_t kStorageAlignment = 4096;

struct StoreOptions {
  enum class Backend : uint8_t { kAuto, kIoUring, kThreads };

  std::filesystem::path folder = {};  // offload_optimizer.nvme_path, offload_param.nvme_path
  int rank = 0;                       // for messages
  AioConfig aio = {};
  Backend backend = Backend::kAuto;  // kIoUring: STO006 where it is refused
  // For tests: wraps the engine that moves the blocks, so as to break it.
  std::function<std::unique_ptr<BlockEngine>(std::unique_ptr<BlockEngine>)> wrap_engine = {};
};

// A read or write under way. Its memory must live until the transfer has ended: the destructor waits for that.
class [[nodiscard]] DiskTransfer {
 public:
  DiskTransfer();  // of nothing: it has ended
  ~DiskTransfer();
  DiskTransfer(DiskTransfer&&) noexcept;
  DiskTransfer& operator=(DiskTransfer&&) noexcept;  // waits for the old one

  bool Ended() const;  // never blocks
  void Wait();         // returns when all is read or written; throws the first error of its blocks

 private:
  friend class StateStore;
  struct State;
  explicit DiskTransfer(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// Read and Write may be called from any thread. Transfers of the same bytes are in no order, unless the first has ended
// before the second begins. The store must outlive its transfers.
class StateStore : private BlockTarget {
 public:
  // Sections in bytes, each 0 or more. Takes sum of sections, each rounded up to kStorageAlignment, from the disk.
  static std::unique_ptr<StateStore> Create(const StoreOptions& options, std::span<const int64_t> section_bytes);
  ~StateStore() override;
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  DiskTransfer Read(int section, int64_t offset, std::span<std::byte> memory);
  DiskTransfer Write(int section, int64_t offset, std::span<const std::byte> memory);

  int64_t section_bytes(int section) const { return sections_[static_cast<size_t>(section)].bytes; }
  int num_sections() const { return static_cast<int>(sections_.size()); }
  int64_t file_bytes() const { return file_bytes_; }
  const std::string& description() const { return description_; }  // "io_uring, past the page cache"

 private:
  struct Section {
    int64_t begin, bytes;
  };
  struct Block;
  StateStore() = default;
  DiskTransfer Start(bool write, int section, int64_t offset, std::byte* memory, int64_t bytes);
  void Ended(BlockTask& task, int64_t result) override;
  std::string Describe(const Block& block) const;  // "rank 3: writing 1.00 MiB at 0 of section 2"
  void OpenEngine(const StoreOptions& options);

  std::filesystem::path folder_;
  int rank_ = 0, descriptor_ = -1;
  int64_t block_bytes_ = 0, file_bytes_ = 0;
  std::vector<Section> sections_;
  std::string description_;
  std::unique_ptr<BlockEngine> engine_;
};

}  // namespace trireme
