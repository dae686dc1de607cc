// The start of a StateStore: its file, its room on the disk, and how blocks move.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/storage/aligned_memory.h"
#include "engine/storage/block_engine.h"
#include "engine/storage/store.h"

namespace trireme {
namespace {

[[noreturn]] void NoFile(const StoreOptions& options, int reason) {
  throw Error(
      ErrorCode::kEnvironment, "STO001",
      fmt::format("no file can be made here for the states of rank {}: {}", options.rank, std::strerror(reason)),
      options.folder.string(),
      "create the folder on a local disk and allow this user to write there, or set nvme_path to another");
}

// A file without a name, where the file system has such; else one whose name goes at once.
int OpenFile(const StoreOptions& options) {
  const int nameless = ::open(options.folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (nameless >= 0) return nameless;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) NoFile(options, errno);
  std::string name = (options.folder / fmt::format(".trireme-rank{}-XXXXXX", options.rank)).string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named < 0) NoFile(options, errno);
  ::unlink(name.c_str());
  return named;
}

[[noreturn]] void NoRoom(const StoreOptions& options, int64_t bytes, const std::string& reason) {
  struct statvfs disk {};
  const bool known = ::statvfs(options.folder.c_str(), &disk) == 0;
  const int64_t free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  throw Error(ErrorCode::kEnvironment, "STO002",
              fmt::format("the states of rank {} need {}, and {} are free: {}", options.rank, FormatBytes(bytes),
                          known ? FormatBytes(free) : "an unknown number of bytes", reason),
              options.folder.string(),
              "free room, set nvme_path to a larger disk, use more nodes, or offload to \"cpu\"");
}

// Takes the room from the disk, so that it does not run out later. False: the file system cannot reserve.
bool Reserve(int descriptor, const StoreOptions& options, int64_t bytes) {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < static_cast<rlim_t>(bytes)) {  // a signal would end the process
    NoRoom(options, bytes,
           fmt::format("files may have {} at most (ulimit -f)", FormatBytes(static_cast<int64_t>(limit.rlim_cur))));
  }
  struct statvfs disk {};  // asked first: a reservation that fails halfway takes all that others need meanwhile
  if (::fstatvfs(descriptor, &disk) == 0 &&
      static_cast<int64_t>(disk.f_bavail) < CeilDiv(bytes, static_cast<int64_t>(disk.f_frsize))) {
    NoRoom(options, bytes, std::strerror(ENOSPC));
  }
  int result;
  do {
    result = ::fallocate(descriptor, 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  if (errno != EOPNOTSUPP && errno != ENOSYS) NoRoom(options, bytes, std::strerror(errno));
  if (::ftruncate(descriptor, bytes) != 0) NoRoom(options, bytes, std::strerror(errno));
  return false;
}

// Switches the page cache off where that works: states are read once a step, and would push out what others need.
bool PassPageCache(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags | O_DIRECT) != 0) return false;
  const AlignedMemory zeros(kStorageAlignment);  // the file holds zeros yet
  if (::pwrite(descriptor, zeros.data(), kStorageAlignment, 0) == kStorageAlignment) return true;
  ::fcntl(descriptor, F_SETFL, flags);
  return false;
}

// One read through a new engine: some sandboxes allow a ring and refuse its use.
class Trial final : public BlockTarget {
 public:
  int64_t Run(BlockEngine& engine) {
    const AlignedMemory memory(kStorageAlignment);
    BlockTask task{.memory = memory.data(), .bytes = kStorageAlignment, .target = this};
    BlockTask* const only = &task;
    engine.Start({&only, 1});
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return result_.has_value(); });
    return *result_;
  }
  void Ended(BlockTask&, int64_t result) override {
    const std::lock_guard lock(mutex_);
    result_ = result;
    ended_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<int64_t> result_;
};

}  // namespace

void StateStore::OpenEngine(const StoreOptions& options) {
  const bool direct = file_bytes_ > 0 && PassPageCache(descriptor_);
  std::string reason = "not asked for";
  if (options.backend != StoreOptions::Backend::kThreads) {
    engine_ = MakeUringEngine(descriptor_, options.aio, reason);
    const int64_t result = engine_ == nullptr || file_bytes_ == 0 ? 0 : Trial().Run(*engine_);
    if (result < 0) {
      reason = std::strerror(static_cast<int>(-result));
      engine_.reset();
    }
    if (engine_ == nullptr && options.backend == StoreOptions::Backend::kIoUring) {
      throw Error(ErrorCode::kEnvironment, "STO006", fmt::format("the kernel refuses io_uring: {}", reason),
                  folder_.string(), "use the threads, or allow io_uring (sysctl kernel.io_uring_disabled, seccomp)");
    }
  }
  description_ = engine_ != nullptr ? "io_uring" : fmt::format("threads (io_uring: {})", reason);
  description_ += direct ? ", past the page cache" : ", through the page cache";
  if (engine_ == nullptr) engine_ = MakeThreadEngine(descriptor_, options.aio);
  if (options.wrap_engine) engine_ = options.wrap_engine(std::move(engine_));
}

std::unique_ptr<StateStore> StateStore::Create(const StoreOptions& options, std::span<const int64_t> section_bytes) {
  std::unique_ptr<StateStore> store(new StateStore);
  store->folder_ = options.folder;
  store->rank_ = options.rank;
  store->block_bytes_ = AlignUp(std::max<int64_t>(1, options.aio.block_size), kStorageAlignment);
  for (const int64_t bytes : section_bytes) {
    store->sections_.push_back({store->file_bytes_, bytes});
    store->file_bytes_ += AlignUp(bytes, kStorageAlignment);
  }
  store->descriptor_ = OpenFile(options);
  const bool reserved = store->file_bytes_ == 0 || Reserve(store->descriptor_, options, store->file_bytes_);
  store->OpenEngine(options);
  if (!reserved) store->description_ += ", room not reserved";
  return store;
}

}  // namespace trireme
