// What ranks print: to the console whole and in order, to a file a rank, and the last lines kept for the report.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/processes.h"

namespace trireme::launcher {

using Clock = std::chrono::steady_clock;

// The console end (stdout or stderr of the launcher), which may be slow or gone: ranks must not wait for it for more
// than 5 s.
class Console {
 public:
  explicit Console(int fd) : fd_(fd) {}
  void Add(std::string_view text);
  // Writes what fits without blocking.
  void Flush();
  bool pending() const { return !text_.empty(); }
  // Enough is waiting: read no more from ranks whose output goes here.
  bool full() const { return text_.size() > kMostBytes; }
  // Has taken nothing for 5 s: what comes now is dropped (and counted) once it is full.
  bool stuck() const { return pending() && Clock::now() - progress_ > std::chrono::seconds(5); }
  int fd() const { return fd_; }
  int64_t dropped_bytes() const { return dropped_bytes_; }

 private:
  static constexpr size_t kMostBytes = 1 << 20;
  int fd_;
  bool gone_ = false;  // its reader has ended
  std::string text_;
  Clock::time_point progress_ = Clock::now();  // last time that it took bytes, or was empty
  int64_t dropped_bytes_ = 0;
};

// The last lines of a stream; a line that '\r' overwrites counts as overwritten.
class Tail {
 public:
  explicit Tail(size_t most_lines) : most_lines_(most_lines) {}
  void Add(std::string_view text);
  std::vector<std::string> Lines() const;

 private:
  static constexpr size_t kMostLineBytes = 4096;
  size_t most_lines_;
  std::deque<std::string> lines_;
  std::string open_;  // the line that has no end yet
};

// Puts `prefix` before each line; holds back an unfinished line until it ends, or has 64 KiB. '\r' ends a line too.
class LinePrefixer {
 public:
  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string Add(std::string_view text);
  std::string Finish();

 private:
  std::string prefix_, open_;
};

// `<stamp>_rank<R>.log` in the job's log folder, and the link latest_rank<R>.log to it.
class RankLog {
 public:
  // Throws Error{kEnvironment, LCH032} if the file cannot be made.
  RankLog(const std::filesystem::path& folder, const std::string& stamp, int rank);
  void Add(std::string_view text);
  const std::filesystem::path& path() const { return path_; }
  const std::string& problem() const { return problem_; }  // why it is not whole: "No space left on device"

 private:
  std::filesystem::path path_;
  Fd file_;
  std::string problem_;
};

}  // namespace trireme::launcher
