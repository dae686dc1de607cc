// Processes of this machine, through /proc and the kernel: start one, list what came out of it, name how it ended.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job.h"

namespace trireme::launcher {

// A file descriptor that closes itself.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  ~Fd() { Reset(); }
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) Reset(other.Release());
    return *this;
  }
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void Reset(int fd = -1);

 private:
  int fd_;
};

struct Spawned {
  pid_t pid = -1;
  Fd out, err;    // read ends, non-blocking
  int error = 0;  // errno if the program could not be started; then pid is -1
};

// Starts a rank in a process group of its own, which the kernel kills when the calling process dies. Its input is
// /dev/null; all descriptors but its output are closed; signals are as in `mask` and at their defaults. Call from the
// main thread of a program without other threads. Throws Error{kEnvironment, LCH031} if the system has no processes or
// descriptors left.
Spawned SpawnRank(const LocalJob& job, const RankSpec& rank, const sigset_t& mask);

// All processes below `root`, without it.
std::vector<pid_t> Descendants(pid_t root);

std::string SignalName(int signal);  // "SIGKILL"

}  // namespace trireme::launcher
