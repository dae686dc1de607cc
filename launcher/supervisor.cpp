#include "launcher/supervisor.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "engine/base/host_memory.h"
#include "engine/base/progress_note.h"

namespace trireme::launcher {
namespace {

constexpr double kLongestOrphanGraceS = 5;  // front gone: nobody waits for a clean end any longer than this
constexpr double kLeftoverGraceS = 1;       // all ranks done, something of theirs still runs
constexpr double kKillS = 5;                // SIGKILL to giving up

Clock::time_point After(double seconds) {
  return Clock::now() + std::chrono::milliseconds(std::llround(seconds * 1000));
}

int SignalFd() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

}  // namespace

Supervisor::Supervisor(const LocalJob& job, int control, const sigset_t& mask)
    : job_(job), control_(control), signals_(SignalFd()), mask_(mask), oom_kills_before_(OomKills()) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_NAME, "trireme-superv");  // ps shows which of the two it is
  std::signal(SIGPIPE, SIG_IGN);         // a console that is gone is no reason to end
  std::signal(SIGTTOU, SIG_IGN);         // nor is being in the background
  end_.host = job.host;
  end_.term_grace_s = job.term_grace_s;
}

JobEnd Supervisor::Run() {
  try {
    StartRanks();
  } catch (...) {
    Terminate(job_.term_grace_s);
    RunToEnd();
    throw;
  }
  RunToEnd();
  return Finish();
}

void Supervisor::RunToEnd() {
  while (phase_ != Phase::kDone) {
    WaitForEvents();
    Advance();
  }
}

void Supervisor::StartRanks() {
  ranks_.reserve(job_.ranks.size());
  for (const RankSpec& spec : job_.ranks) {
    StartRank(spec);
    if (ranks_.back().end.ended) return Terminate(job_.term_grace_s);  // the others would fail alike
  }
}

void Supervisor::StartRank(const RankSpec& spec) {
  Rank& rank = ranks_.emplace_back();
  rank.end.ended = true;  // until it runs
  rank.log = std::make_unique<RankLog>(job_.log_dir, job_.stamp, spec.rank);
  rank.end.rank = spec.rank;
  rank.end.device = spec.device;
  rank.end.shown = job_.shown_ranks.contains(spec.rank);
  rank.end.log = rank.log->path().string();
  rank.progress = spec.progress;
  rank.started = Clock::now();
  Spawned spawned = SpawnRank(job_, spec, mask_);
  rank.end.pid = spawned.pid;
  rank.end.ended = spawned.pid < 0;
  if (rank.end.ended) {
    rank.end.start_error = spawned.error;
    rank.end.exit_code = spawned.error == ENOENT ? 127 : 126;
    return;
  }
  const std::string prefix = job_.shown_ranks.size() > 1 ? fmt::format("[{}] ", spec.rank) : "";
  const auto lines = static_cast<size_t>(job_.tail_lines);
  rank.streams.push_back({std::move(spawned.out), &out_, Tail(lines), LinePrefixer(prefix), ""});
  rank.streams.push_back({std::move(spawned.err), &err_, Tail(lines), LinePrefixer(prefix), ""});
}

// Ends are noticed before output is read, so that what a rank prints about another's death does not stand before the
// report of that death.
void Supervisor::WaitForEvents() {
  std::vector<pollfd> events = {{signals_.get(), POLLIN, 0}, {control_.get(), POLLIN, 0}};
  struct Source {
    Rank* rank;
    Stream* stream;
  };
  std::vector<Source> sources;
  for (Rank& rank : ranks_) {
    for (Stream& stream : rank.streams) {
      if (!stream.fd.open() || (rank.end.shown && stream.console->full() && !stream.console->stuck())) continue;
      events.push_back({stream.fd.get(), POLLIN, 0});
      sources.push_back({&rank, &stream});
    }
  }
  const size_t consoles = events.size();
  for (const Console* console : {&out_, &err_}) {
    if (console->pending()) events.push_back({console->fd(), POLLOUT, 0});
  }
  if (poll(events.data(), events.size(), TimeoutMs()) < 0) return;  // EINTR
  Reap();
  if (events[1].revents != 0) ReadControl();
  for (size_t i = 2; i < consoles; ++i) {
    if (events[i].revents != 0) ReadStream(*sources[i - 2].rank, *sources[i - 2].stream);
  }
  out_.Flush();
  err_.Flush();
}

void Supervisor::Reap() {
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) OnSignal(static_cast<int>(info.ssi_signo));
  }
  bool any_rank = false;
  int status = 0;
  rusage usage{};
  for (pid_t pid; (pid = wait4(-1, &status, WNOHANG, &usage)) > 0;) {
    for (Rank& rank : ranks_) {
      if (rank.end.pid != pid || rank.end.ended) continue;
      RecordEnd(rank, status);
      rank.end.peak_bytes = usage.ru_maxrss * int64_t{1024};
      any_rank = true;
    }
  }
  if (!any_rank) return;
  for (Rank& rank : ranks_) {  // what was printed before this end is shown; one read empties a pipe
    for (Stream& stream : rank.streams) ReadStream(rank, stream);
  }
  if (phase_ == Phase::kRunning || phase_ == Phase::kSettling) {
    std::vector<RankEnd> ends;
    for (const Rank& rank : ranks_) ends.push_back(rank.end);
    end_.first_failure = FirstFailure(ends);
  }
}

void Supervisor::RecordEnd(Rank& rank, int status) {
  rank.end.ended = true;
  rank.end.seconds = std::chrono::duration<double>(Clock::now() - rank.started).count();
  rank.end.after_stop = phase_ == Phase::kTerminating || phase_ == Phase::kKilling;
  if (WIFSIGNALED(status)) {
    rank.end.signal = WTERMSIG(status);
  } else {
    rank.end.exit_code = WEXITSTATUS(status);
  }
}

void Supervisor::OnSignal(int signal) {
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    for (const Rank& rank : ranks_) {
      if (!rank.end.ended) kill(rank.end.pid, signal);
    }
  } else if (signal == SIGTSTP) {
    SignalAll(SIGSTOP);
  } else if (signal == SIGCONT) {
    SignalAll(SIGCONT);
  } else if (phase_ == Phase::kTerminating) {
    Kill();
  } else if (phase_ != Phase::kKilling) {
    if (end_.first_failure < 0) end_.user_signal = signal;
    Terminate(job_.term_grace_s);
  }
}

void Supervisor::ReadControl() {
  std::array<unsigned char, 64> signals{};
  const ssize_t count = recv(control_.get(), signals.data(), signals.size(), MSG_DONTWAIT);
  if (count < 0) return;
  for (ssize_t i = 0; i < count; ++i) OnSignal(signals[static_cast<size_t>(i)]);
  if (count > 0) return;
  control_.Reset();  // poll() passes over a negative descriptor
  if (phase_ == Phase::kRunning || phase_ == Phase::kSettling) {
    end_.user_signal = SIGHUP;
    Terminate(std::min(job_.term_grace_s, kLongestOrphanGraceS));
  } else if (phase_ == Phase::kTerminating) {
    deadline_ = std::min(deadline_, After(kLongestOrphanGraceS));
  }
}

bool Supervisor::ReadStream(Rank& rank, Stream& stream) {
  if (!stream.fd.open()) return false;
  std::array<char, 64 * 1024> bytes;
  const ssize_t count = read(stream.fd.get(), bytes.data(), bytes.size());
  if (count < 0) return errno == EINTR;
  if (count == 0) {
    Show(rank, stream, "");
    stream.fd.Reset();
    return false;
  }
  const std::string_view text(bytes.data(), static_cast<size_t>(count));
  rank.log->Add(text);
  stream.tail.Add(text);
  Show(rank, stream, text);
  return true;
}

// After a failure the blamed rank speaks alone: what the others say about its end stands in their logs. While it is not
// settled whom to blame, their words are held back.
void Supervisor::Show(Rank& rank, Stream& stream, std::string_view text) {
  if (!rank.end.shown) return;
  if (end_.first_failure >= 0 && end_.first_failure != rank.end.rank) {
    if (phase_ == Phase::kRunning || phase_ == Phase::kSettling) stream.held += text;
    if (!text.empty()) rank.end.withheld = true;
    return;
  }
  if (job_.shown_ranks.size() == 1) {
    stream.console->Add(text);
  } else {
    stream.console->Add(text.empty() ? stream.prefixer.Finish() : stream.prefixer.Add(text));
  }
}

// Moves from phase to phase.
void Supervisor::Advance() {
  const bool late = Clock::now() >= deadline_;
  if (phase_ == Phase::kRunning && end_.first_failure >= 0) {
    phase_ = Phase::kSettling;
    deadline_ = After(SettleSeconds(ranks_[static_cast<size_t>(end_.first_failure)].end));
  }
  if (phase_ == Phase::kSettling) {
    const double settle_s = SettleSeconds(ranks_[static_cast<size_t>(end_.first_failure)].end);
    if (late || settle_s == 0 || AllEnded()) Terminate(job_.term_grace_s);
    return;
  }
  if (phase_ == Phase::kRunning && AllEnded()) {
    if (Descendants(getpid()).empty()) {
      phase_ = Phase::kDone;
    } else {
      Terminate(std::min(job_.term_grace_s, kLeftoverGraceS));
    }
    return;
  }
  if (phase_ == Phase::kTerminating) {
    if (AllEnded() && Descendants(getpid()).empty()) phase_ = Phase::kDone;
    if (phase_ == Phase::kTerminating && late) Kill();
    return;
  }
  if (phase_ == Phase::kKilling) {
    const std::vector<pid_t> left = Descendants(getpid());
    if (AllEnded() && left.empty()) phase_ = Phase::kDone;
    if (phase_ == Phase::kKilling && late) {
      end_.survivors = left;
      phase_ = Phase::kDone;
    }
    if (phase_ == Phase::kKilling) SignalAll(SIGKILL);  // again: new ones may have been born
  }
}

void Supervisor::Terminate(double grace_s) {
  phase_ = Phase::kTerminating;
  for (Rank& rank : ranks_) {
    if (rank.end.rank != end_.first_failure) continue;
    for (Stream& stream : rank.streams) Show(rank, stream, std::exchange(stream.held, ""));
    rank.end.withheld = false;
  }
  deadline_ = After(grace_s);
  SignalAll(SIGTERM);
  SignalAll(SIGCONT);  // a stopped process acts on SIGTERM only when it goes on
}

void Supervisor::Kill() {
  phase_ = Phase::kKilling;
  deadline_ = After(kKillS);
  SignalAll(SIGKILL);
}

void Supervisor::SignalAll(int signal) const {
  for (const pid_t pid : Descendants(getpid())) kill(pid, signal);
}

bool Supervisor::AllEnded() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.end.ended; });
}

int Supervisor::TimeoutMs() const {
  if (phase_ == Phase::kKilling) return 20;
  const bool waiting_for_orphans = phase_ == Phase::kTerminating && AllEnded();
  const bool console_waits = out_.full() || err_.full();
  if (deadline_ == Clock::time_point::max()) return console_waits ? 1000 : -1;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count() + 1;
  const int most_ms = waiting_for_orphans ? 20 : 1000;
  return static_cast<int>(std::clamp<int64_t>(left, 0, most_ms));
}

JobEnd Supervisor::Finish() {
  for (Rank& rank : ranks_) {
    for (Stream& stream : rank.streams) {
      for (int turn = 0; turn < 32 && ReadStream(rank, stream); ++turn) continue;
      Show(rank, stream, "");
      if (rank.end.tail.empty() || !stream.tail.Lines().empty())
        rank.end.tail = stream.tail.Lines();  // stderr, if it said anything
    }
    rank.end.log_problem = rank.log->problem();
    rank.end.at = ReadProgressNote(rank.progress);
    std::error_code ignored;
    std::filesystem::remove(rank.progress, ignored);
    end_.ranks.push_back(rank.end);
  }
  if (end_.first_failure < 0) end_.first_failure = FirstFailure(end_.ranks);
  const Clock::time_point last = After(kKillS);
  while ((out_.pending() || err_.pending()) && Clock::now() < last) {
    out_.Flush();
    err_.Flush();
    std::array<pollfd, 2> ends = {{{out_.pending() ? 1 : -1, POLLOUT, 0}, {err_.pending() ? 2 : -1, POLLOUT, 0}}};
    poll(ends.data(), ends.size(), 100);
  }
  end_.dropped_bytes = out_.dropped_bytes() + err_.dropped_bytes();
  end_.oom_kills = OomKills() - oom_kills_before_;
  end_.memory = ReadHostMemory();
  return end_;
}

}  // namespace trireme::launcher
