#include "launcher/local.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>
#include <system_error>

#include "engine/base/error.h"
#include "launcher/processes.h"
#include "launcher/report.h"
#include "launcher/supervisor.h"

namespace trireme::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::array<int, 4> kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

bool IsIgnored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Signals that the front takes from a descriptor. One that was ignored when it started (nohup, a background job) stays
// ignored.
sigset_t FrontSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) sigaddset(&set, signal);
  for (const int signal : kStopSignals) {
    if (!IsIgnored(signal)) sigaddset(&set, signal);
  }
  return set;
}

// Blocks signals for its lifetime.
class BlockedSignals {
 public:
  explicit BlockedSignals(const sigset_t& set) { sigprocmask(SIG_BLOCK, &set, &before_); }
  ~BlockedSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_;
};

void SendAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return;  // the front is gone: nobody reads
    text.remove_prefix(static_cast<size_t>(sent));
  }
}

// The outcome's way from supervisor to front: exit code in three digits, then the report.
[[noreturn]] void Supervise(const LocalJob& job, int control, const sigset_t& mask) {
  setpgid(0, 0);  // ^C of the terminal goes to the front alone, which passes it on once
  const int answer = fcntl(control, F_DUPFD_CLOEXEC, 3);
  std::string text;
  try {
    const JobEnd end = Supervisor(job, control, mask).Run();
    text = fmt::format("{:03}{}", JobExitCode(end), RenderReport(end));
  } catch (const Error& error) {
    text = fmt::format("{:03}{}\n", ExitCode(error.code()), error.what());
  } catch (const std::exception& error) {
    text = fmt::format("{:03}error {}: {}\n", ExitCode(ErrorCode::kInternal), "LCH033", error.what());
  }
  SendAll(answer, text);
  _exit(0);
}

// The supervisor was killed: its ranks die with it, what they left behind has come to this process.
JobOutcome CleanUp(int status) {
  for (int turn = 0; turn < 250; ++turn) {
    const std::vector<pid_t> left = Descendants(getpid());
    if (left.empty()) break;
    for (const pid_t pid : left) kill(pid, SIGKILL);
    while (waitpid(-1, nullptr, WNOHANG) > 0) continue;
    usleep(20 * 1000);
  }
  const std::string how =
      WIFSIGNALED(status) ? SignalName(WTERMSIG(status)) : fmt::format("exit code {}", WEXITSTATUS(status));
  return {ExitCode(ErrorCode::kInternal),
          fmt::format("[launcher] the supervisor of the ranks was ended by {}; all ranks were killed\n"
                      "[launcher] exits with return code = {}\n",
                      how, ExitCode(ErrorCode::kInternal))};
}

class Front {
 public:
  Front(pid_t supervisor, int control, const sigset_t& signals)
      : supervisor_(supervisor), control_(control), signals_(signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC)) {}

  JobOutcome Wait() {
    while (!answered_ && num_stop_signals_ < 3) {
      std::array<pollfd, 2> events = {{{control_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}}};
      poll(events.data(), events.size(), -1);
      if (events[1].revents != 0) PassSignals();
      if (events[0].revents != 0) ReadAnswer();
    }
    if (!answered_)
      return {128 + last_stop_signal_, "[launcher] ended at once; its supervisor still stops the ranks\n"};
    int status = 0;
    while (waitpid(supervisor_, &status, 0) < 0 && errno == EINTR) continue;
    if (answer_.size() < 3 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return CleanUp(status);
    return {std::stoi(answer_.substr(0, 3)), answer_.substr(3)};
  }

 private:
  void PassSignals() {
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;  // the end of the socket tells more
      const auto byte = static_cast<char>(signal);
      SendAll(control_.get(), {&byte, 1});
      if (signal == SIGTSTP) kill(getpid(), SIGSTOP);
      for (const int stop : kStopSignals) {
        if (signal != stop) continue;
        ++num_stop_signals_;
        last_stop_signal_ = signal;
      }
    }
  }

  void ReadAnswer() {
    std::array<char, 4096> bytes;
    const ssize_t count = recv(control_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) answer_.append(bytes.data(), static_cast<size_t>(count));
    answered_ = count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN);
  }

  pid_t supervisor_;
  Fd control_, signals_;
  std::string answer_;
  bool answered_ = false;
  int num_stop_signals_ = 0;
  int last_stop_signal_ = 0;
};

void MakeLogFolder(const LocalJob& job) {
  std::error_code error;
  fs::create_directories(job.log_dir, error);
  if (!error && !job.keep_logs) fs::permissions(job.log_dir, fs::perms::owner_all, error);
  if (error || !fs::is_directory(job.log_dir)) {
    throw Error(ErrorCode::kEnvironment, "LCH032",
                "cannot make the folder for log files: " + (error ? error.message() : "it is a file"),
                job.log_dir.string(), "give another folder with --log_dir");
  }
}

}  // namespace

JobOutcome RunJob(const LocalJob& job) {
  for (int fd = 0; fd <= STDERR_FILENO;) {  // a closed descriptor 0, 1 or 2 would be taken by a pipe
    fd = open("/dev/null", O_RDWR);
    if (fd > STDERR_FILENO) close(fd);
    if (fd < 0) break;
  }
  MakeLogFolder(job);
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(ErrorCode::kEnvironment, "LCH031", fmt::format("cannot make a socket: {}", std::strerror(errno)), "",
                "raise `ulimit -n`");
  }
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const sigset_t signals = FrontSignals();
  const BlockedSignals blocked(signals);
  std::fflush(nullptr);
  const pid_t supervisor = fork();
  if (supervisor < 0) {
    throw Error(ErrorCode::kEnvironment, "LCH031", fmt::format("cannot start a process: {}", std::strerror(errno)), "",
                "raise `ulimit -u`");
  }
  if (supervisor == 0) {
    close(ends[0]);
    Supervise(job, ends[1], blocked.before());
  }
  close(ends[1]);
  const JobOutcome outcome = Front(supervisor, ends[0], signals).Wait();
  if (outcome.exit_code == 0 && !job.keep_logs) {
    std::error_code error;
    fs::remove_all(job.log_dir, error);
  }
  return outcome;
}

}  // namespace trireme::launcher
