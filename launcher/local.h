// Runs a job on this machine: two processes of the launcher, of which each cleans up if the other is killed.
//   const JobOutcome outcome = RunJob(job);   // outcome.exit_code, outcome.report
// The front (the process that the user started) forks the supervisor, which forks the ranks. Both adopt orphans of
// theirs (PR_SET_CHILD_SUBREAPER). Front killed: the supervisor sees its socket close and stops all ranks. Supervisor
// killed: the kernel kills the ranks (PR_SET_PDEATHSIG), and the front kills what they left behind. Signals to the
// front: INT, TERM, HUP, QUIT: SIGTERM to all processes of the job, after the grace SIGKILL; a second one: SIGKILL now;
// USR1, USR2: to every rank; TSTP, CONT: stop and go on everywhere.
#pragma once
#include <string>

#include "launcher/job.h"

namespace trireme::launcher {

struct JobOutcome {
  int exit_code = 0;   // of the first failing rank, 128 + S for signal S; 128 + S too if signal S ended the launcher
  std::string report;  // for stderr; "" if all went well
};

// Forks: call it from the main thread of a program without other threads. Console output goes to descriptors 1 and 2.
// Throws Error{kEnvironment, LCH031, LCH032}.
JobOutcome RunJob(const LocalJob& job);

}  // namespace trireme::launcher
