#include "launcher/report.h"

#include <fmt/core.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <tuple>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "launcher/processes.h"

namespace trireme::launcher {
namespace {

const int kCommunicationCode = ExitCode(ErrorCode::kCommunication);

bool SameOnAllRanks(const RankEnd& end) {
  return end.signal == 0 &&
         (end.exit_code == ExitCode(ErrorCode::kUsage) || end.exit_code == ExitCode(ErrorCode::kConfig));
}

bool Suffered(const RankEnd& end) { return end.signal == 0 && end.exit_code == kCommunicationCode; }

std::string HowItEnded(const RankEnd& end) {
  if (end.start_error != 0) return fmt::format("could not be started: {}", std::strerror(end.start_error));
  if (end.signal != 0) return fmt::format("killed by signal {} ({})", end.signal, SignalName(end.signal));
  return fmt::format("exit code {}", end.exit_code);
}

std::string ElapsedTime(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  return fmt::format("{:02}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string SharedMemoryFree() {
  struct statvfs info {};
  if (statvfs("/dev/shm", &info) != 0) return "";
  return fmt::format(", {} free", FormatBytes(static_cast<int64_t>(info.f_bavail * info.f_frsize)));
}

int64_t PeakOfAll(const JobEnd& job) {
  int64_t bytes = 0;
  for (const RankEnd& rank : job.ranks) bytes += rank.peak_bytes;
  return bytes;
}

// What the ranks held at most; the kernel tells at the end of each.
std::string ResidentOf(const JobEnd& job, const RankEnd& end) {
  if (end.peak_bytes == 0) return "";
  std::string text = fmt::format("; rank {} had {} resident at most", end.rank, FormatBytes(end.peak_bytes));
  if (job.ranks.size() > 1) text += fmt::format(", all ranks of this host {}", FormatBytes(PeakOfAll(job)));
  return text;
}

// A control group's counter of kills is not always to be seen from inside of it.
constexpr double kNearlyAllMemory = 0.85;

std::string CauseOfKill(const JobEnd& job, const RankEnd& end) {
  const std::string limit = job.memory.limit > 0 ? ", limit " + job.memory.Describe() : "";
  const std::string cure =
      "\n[launcher] `trireme plan` shows the host memory that each rank needs; offload less, or to "
      "nvme, or start fewer ranks on a host";
  if (job.oom_kills > 0) {
    return fmt::format("killed by SIGKILL, host out of memory ({} oom kills by the kernel while the job ran{}){}{}",
                       job.oom_kills, limit, ResidentOf(job, end), cure);
  }
  const auto most = static_cast<double>(PeakOfAll(job));
  if (job.memory.limit > 0 && most > kNearlyAllMemory * static_cast<double>(job.memory.limit)) {
    return fmt::format("killed by SIGKILL, probably host out of memory{}{}{}", limit, ResidentOf(job, end), cure);
  }
  return "someone or the job system killed it; the kernel counted no kill for want of memory" + ResidentOf(job, end);
}

std::string LikelyCause(const JobEnd& job, const RankEnd& end) {
  switch (end.signal) {
    case SIGKILL:
      return CauseOfKill(job, end);
    case SIGBUS:
      return "shared memory is too small (/dev/shm" + SharedMemoryFree() + "), or a mapped file was cut short";
    case SIGSEGV:
      return "a crash inside the program; its last lines say where it was";
    case SIGABRT:
      return "the program ended itself; its last lines say why";
    case SIGILL:
      return "it was built for a processor with other instructions than this one";
    case SIGFPE:
      return "an integer division by zero inside the program";
    case SIGTERM:
      return "someone or the job system asked it to end";
    default:
      break;
  }
  if (end.signal == 0 && end.exit_code == 127) return "the program, or one that it starts, was not found";
  if (Suffered(end))
    return "it lost contact with another rank, or something outside the program (a port, a file) refused it; no rank "
           "of this machine failed before it";
  return "";
}

// Whether a rank whose output went to the console showed the same error: what ranks find out together is read once.
bool StandsAbove(const JobEnd& job, const RankEnd& end) {
  const auto error = std::find_if(end.tail.begin(), end.tail.end(),
                                  [](const std::string& line) { return line.starts_with("error "); });
  if (error == end.tail.end()) return false;
  return std::any_of(job.ranks.begin(), job.ranks.end(), [&](const RankEnd& other) {
    return other.shown && !other.withheld &&
           std::find(other.tail.begin(), other.tail.end(), *error) != other.tail.end();
  });
}

std::string RenderFirst(const JobEnd& job, const RankEnd& end) {
  std::string text = fmt::format("[launcher] rank {} (local rank {}, {}) on host {}, pid {}, after {}: {}\n", end.rank,
                                 end.rank, end.device, job.host, end.pid, ElapsedTime(end.seconds), HowItEnded(end));
  if (end.signal != 0 && !end.at.empty()) {
    text += fmt::format("[launcher] rank {} was at {}\n", end.rank, Join(end.at, "; "));
  }
  if (const std::string cause = LikelyCause(job, end); !cause.empty())
    text += "[launcher] likely cause: " + cause + "\n";
  if (end.start_error != 0) return text;
  if (end.shown)
    return text + fmt::format("[launcher] the last lines of rank {} stand above (all: {})\n", end.rank, end.log);
  if (StandsAbove(job, end))
    return text + fmt::format("[launcher] its error is the one that stands above (all: {})\n", end.log);
  if (end.tail.empty()) return text + fmt::format("[launcher] rank {} printed nothing\n", end.rank);
  text += fmt::format("[launcher] last {} lines of rank {} (all: {}):\n", end.tail.size(), end.rank, end.log);
  for (const std::string& line : end.tail) text += "  | " + line + "\n";
  return text;
}

// One line for each other rank that failed by itself, one for those that the launcher stopped.
std::string RenderOthers(const JobEnd& job) {
  std::string text;
  std::vector<int> stopped;
  for (const RankEnd& end : job.ranks) {
    if (end.rank == job.first_failure || !end.ended) continue;
    const bool by_signal = end.code() == 128 + SIGTERM || end.code() == 128 + SIGKILL || !end.failed();
    if (end.after_stop && by_signal) {
      stopped.push_back(end.rank);
    } else if (end.failed()) {
      text += fmt::format("[launcher] rank {} then: {} (log: {})\n", end.rank, HowItEnded(end), end.log);
    }
  }
  if (!stopped.empty()) {
    text += fmt::format("[launcher] rank{} {} {} stopped by the launcher\n", stopped.size() > 1 ? "s" : "",
                        RankRanges(stopped), stopped.size() > 1 ? "were" : "was");
  }
  return text;
}

}  // namespace

int FirstFailure(const std::vector<RankEnd>& ranks) {
  const RankEnd* best = nullptr;
  const auto key = [](const RankEnd& end) { return std::make_tuple(Suffered(end), end.seconds, end.rank); };
  for (const RankEnd& end : ranks) {
    if (!end.ended || !end.failed() || end.after_stop) continue;
    if (best == nullptr || key(end) < key(*best)) best = &end;
  }
  if (best == nullptr) return -1;
  if (!SameOnAllRanks(*best)) return best->rank;
  for (const RankEnd& end : ranks) {
    if (end.ended && !end.after_stop && end.signal == 0 && end.exit_code == best->exit_code) return end.rank;
  }
  return best->rank;
}

double SettleSeconds(const RankEnd& blamed) {
  if (Suffered(blamed)) return 2;
  return SameOnAllRanks(blamed) ? 1 : 0;
}

int JobExitCode(const JobEnd& end) {
  if (end.first_failure >= 0) return end.ranks[static_cast<size_t>(end.first_failure)].code();
  return end.user_signal != 0 ? 128 + end.user_signal : 0;
}

std::string RenderReport(const JobEnd& end) {
  std::string text;
  if (end.first_failure >= 0) {
    text += RenderFirst(end, end.ranks[static_cast<size_t>(end.first_failure)]);
  } else if (end.user_signal != 0) {
    text += fmt::format("[launcher] ended by {}\n", SignalName(end.user_signal));
  }
  if (!text.empty()) text += RenderOthers(end);
  for (const RankEnd& rank : end.ranks) {
    if (!rank.log_problem.empty()) text += fmt::format("[launcher] {} is not whole: {}\n", rank.log, rank.log_problem);
  }
  if (end.dropped_bytes > 0) {
    text += fmt::format("[launcher] the console took no output for 5 s: {} bytes stand in the log files only\n",
                        end.dropped_bytes);
  }
  for (const pid_t pid : end.survivors)
    text += fmt::format("[launcher] process {} does not end, not even by SIGKILL: it waits in the kernel\n", pid);
  if (JobExitCode(end) != 0) text += fmt::format("[launcher] exits with return code = {}\n", JobExitCode(end));
  return text;
}

std::string RankRanges(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ",";
    text +=
        last == i ? std::to_string(ranks[i]) : fmt::format("{}{}{}", ranks[i], last == i + 1 ? "," : "-", ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace trireme::launcher
