// How a job ended: which rank failed first, the exit code, and the text that people read. No process is touched here.
//   JobEnd end; ...; DecideFirstFailure(end); return {JobExitCode(end), RenderReport(end)};
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/host_memory.h"

namespace trireme::launcher {

struct RankEnd {
  int rank = 0;
  pid_t pid = -1;
  std::string device;
  double seconds = 0;  // from its start to its end
  int exit_code = 0;   // if no signal killed it
  int signal = 0;
  bool after_stop = false;  // the launcher had asked it to end
  bool ended = false;
  bool shown = false;             // its output went to the console
  bool withheld = false;          // but not all of it: after another rank's failure
  std::string log;                // path
  std::string log_problem;        // why the log is not whole
  std::vector<std::string> tail;  // its last lines
  std::vector<std::string> at;    // what it was at: one line a lane, the newest first
  int start_error = 0;            // errno if it could not be started
  int64_t peak_bytes = 0;         // most that was resident of it; 0: not known

  bool failed() const { return signal != 0 || exit_code != 0; }
  int code() const { return signal != 0 ? 128 + signal : exit_code; }
};

struct JobEnd {
  std::string host;
  std::vector<RankEnd> ranks;
  int first_failure = -1;  // rank, or none
  int user_signal = 0;     // that ended the job
  int64_t oom_kills = 0;   // of the kernel while the job ran
  HostMemory memory;
  std::vector<pid_t> survivors;  // processes that not even SIGKILL ended
  int64_t dropped_bytes = 0;     // that a blocked console did not take
  double term_grace_s = 10;
};

// The rank that failed first on its own, or -1. A rank that ends with 69 (communication) suffers from another's death:
// it is blamed only if no other rank failed. A wrong command line or config (2, 78) fails on all ranks alike: the
// lowest is blamed. Else the earliest, then the lowest.
int FirstFailure(const std::vector<RankEnd>& ranks);

// How long to wait for a better answer after this rank's end.
double SettleSeconds(const RankEnd& blamed);

int JobExitCode(const JobEnd& end);
std::string RenderReport(const JobEnd& end);  // "" if all went well

std::string RankRanges(std::vector<int> ranks);  // "0-4,6,7"

}  // namespace trireme::launcher
