#include "launcher/output.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "engine/base/error.h"

namespace trireme::launcher {

void Console::Add(std::string_view text) {
  if (gone_) return;
  if (full() && stuck()) {
    dropped_bytes_ += static_cast<int64_t>(text.size());
    return;
  }
  if (text_.empty()) progress_ = Clock::now();
  text_ += text;
}

void Console::Flush() {
  while (!text_.empty()) {
    pollfd end = {fd_, POLLOUT, 0};
    if (poll(&end, 1, 0) <= 0) return;
    // A pipe that poll() calls writable takes PIPE_BUF bytes without blocking. The descriptor is shared: it is not ours
    // to make non-blocking.
    const ssize_t written = write(fd_, text_.data(), std::min<size_t>(text_.size(), 4096));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (written < 0) {
      gone_ = true;
      text_.clear();
      return;
    }
    text_.erase(0, static_cast<size_t>(written));
    progress_ = Clock::now();
  }
}

void Tail::Add(std::string_view text) {
  for (const char c : text) {
    if (c == '\n') {
      lines_.push_back(std::move(open_));
      open_.clear();
      if (lines_.size() > most_lines_) lines_.pop_front();
    } else if (open_.size() < kMostLineBytes) {
      open_ += c;
    }
  }
}

std::vector<std::string> Tail::Lines() const {
  std::vector<std::string> lines(lines_.begin(), lines_.end());
  if (!open_.empty()) lines.push_back(open_);
  for (std::string& line : lines) {
    if (line.ends_with('\r')) line.pop_back();
    if (const size_t shown = line.rfind('\r'); shown != std::string::npos) line.erase(0, shown + 1);
  }
  if (lines.size() > most_lines_) lines.erase(lines.begin());
  return lines;
}

std::string LinePrefixer::Add(std::string_view text) {
  std::string whole;
  for (const char c : text) {
    open_ += c;
    if (c == '\n' || c == '\r' || open_.size() >= 64 * 1024) {
      whole += prefix_ + open_;
      if (c != '\n' && c != '\r') whole += "\n";
      open_.clear();
    }
  }
  return whole;
}

std::string LinePrefixer::Finish() {
  if (open_.empty()) return "";
  std::string rest = prefix_ + open_ + "\n";
  open_.clear();
  return rest;
}

RankLog::RankLog(const std::filesystem::path& folder, const std::string& stamp, int rank) {
  const std::string name = fmt::format("{}_rank{}.log", stamp, rank);
  path_ = folder / name;
  file_ = Fd(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file_.open()) {
    throw Error(ErrorCode::kEnvironment, "LCH032", fmt::format("cannot write the log file: {}", std::strerror(errno)),
                path_.string(), "give a folder that this user can write with --log_dir");
  }
  std::error_code error;
  const std::filesystem::path link = folder / fmt::format("latest_rank{}.log", rank);
  std::filesystem::remove(link, error);
  std::filesystem::create_symlink(name, link, error);
}

void RankLog::Add(std::string_view text) {
  while (!text.empty() && problem_.empty()) {
    const ssize_t written = write(file_.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      problem_ = std::strerror(errno);
      return;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace trireme::launcher
