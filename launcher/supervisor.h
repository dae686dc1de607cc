// The process that starts the ranks, reads their output, notices their ends and ends the rest (local.h). One thread,
// one poll loop.
#pragma once
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/job.h"
#include "launcher/output.h"
#include "launcher/processes.h"
#include "launcher/report.h"

namespace trireme::launcher {

class Supervisor {
 public:
  // `control`: socket on which the front sends signal numbers, one byte each, and whose end means that the front is
  // gone. `mask`: signal mask of ranks.
  Supervisor(const LocalJob& job, int control, const sigset_t& mask);

  // Runs the job to its end; nothing of it is left then, also when it throws (Error{kEnvironment, LCH031, LCH032}).
  JobEnd Run();

 private:
  enum class Phase { kRunning, kSettling, kTerminating, kKilling, kDone };

  struct Stream {  // stdout or stderr of a rank
    Fd fd;
    Console* console = nullptr;
    Tail tail;
    LinePrefixer prefixer;
    std::string held;  // not shown yet
  };
  struct Rank {
    RankEnd end;
    Clock::time_point started;
    std::unique_ptr<RankLog> log;
    std::filesystem::path progress;
    std::vector<Stream> streams;  // out, err
  };

  void StartRanks();
  void RunToEnd();
  void StartRank(const RankSpec& spec);
  void WaitForEvents();
  void Reap();
  void RecordEnd(Rank& rank, int status);
  void OnSignal(int signal);
  void ReadControl();
  bool ReadStream(Rank& rank, Stream& stream);  // one read; false: nothing there now
  void Show(Rank& rank, Stream& stream, std::string_view text);
  void Advance();
  void Terminate(double grace_s);
  void Kill();
  void SignalAll(int signal) const;
  bool AllEnded() const;
  int TimeoutMs() const;
  JobEnd Finish();

  const LocalJob& job_;
  Fd control_;
  Fd signals_;
  sigset_t mask_;
  Console out_{1}, err_{2};
  std::vector<Rank> ranks_;
  JobEnd end_;
  int64_t oom_kills_before_;
  Phase phase_ = Phase::kRunning;
  Clock::time_point deadline_ = Clock::time_point::max();  // of the phase
};

}  // namespace trireme::launcher
