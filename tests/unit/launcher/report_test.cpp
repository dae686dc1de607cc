// Whom a job's end is blamed on, and what is said about it.
#include "launcher/report.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

namespace trireme::launcher {
namespace {

RankEnd Ended(int rank, double seconds, int exit_code, int signal = 0, bool after_stop = false) {
  RankEnd end;
  end.rank = rank;
  end.pid = 100 + rank;
  end.device = "GPU 1";
  end.seconds = seconds;
  end.exit_code = exit_code;
  end.signal = signal;
  end.after_stop = after_stop;
  end.ended = true;
  end.log = "logs/" + std::to_string(rank);
  return end;
}

TEST(FirstFailure, EarliestThenLowest) {
  EXPECT_EQ(FirstFailure({Ended(0, 5, 0), Ended(1, 4, 0)}), -1);
  EXPECT_EQ(FirstFailure({Ended(0, 5, 1), Ended(1, 4, 1), Ended(2, 4, 3)}), 1);
  EXPECT_EQ(FirstFailure({Ended(0, 3, 0, SIGTERM, true), Ended(1, 4, 1)}), 1);  // the launcher's doing is no failure
}

TEST(FirstFailure, LostContactIsBlamedLast) {
  EXPECT_EQ(FirstFailure({Ended(0, 1, 69), Ended(1, 2, 69), Ended(2, 3, 0, SIGKILL)}), 2);
  EXPECT_EQ(FirstFailure({Ended(0, 2, 69), Ended(1, 1, 69)}), 1);
  EXPECT_GT(SettleSeconds(Ended(0, 1, 69)), 1);
  EXPECT_EQ(SettleSeconds(Ended(0, 1, 70)), 0);
}

TEST(FirstFailure, LCH_16_ConfigErrorsAreTheLowestRanks) {
  EXPECT_EQ(FirstFailure({Ended(0, 3, 78), Ended(1, 1, 78), Ended(2, 2, 78)}), 0);
  EXPECT_EQ(FirstFailure({Ended(0, 1, 69), Ended(1, 3, 2), Ended(2, 2, 2)}), 1);
}

TEST(Report, LCH_15_SaysWhoHowAndWhy) {
  JobEnd end;
  end.host = "node7";
  end.ranks = {Ended(0, 843, 0, SIGTERM, true), Ended(1, 843.5, 0, SIGKILL), Ended(2, 843, 69),
               Ended(3, 843, 143, 0, true)};
  end.ranks[1].tail = {"step 10", "step 11"};
  end.first_failure = FirstFailure(end.ranks);
  end.oom_kills = 1;
  end.memory = {.limit = int64_t{64} << 30, .is_group = true};
  EXPECT_EQ(JobExitCode(end), 137);
  EXPECT_EQ(
      RenderReport(end),
      "[launcher] rank 1 (local rank 1, GPU 1) on host node7, pid 101, after 00:14:03: killed by signal 9 (SIGKILL)\n"
      "[launcher] likely cause: killed by SIGKILL, host out of memory (1 oom kills by the kernel while the job ran, "
      "limit 64.00 GiB, the limit of this control group (container or job))\n"
      "[launcher] `trireme plan` shows the host memory that each rank needs; offload less, or to nvme, or start fewer "
      "ranks on a host\n"
      "[launcher] last 2 lines of rank 1 (all: logs/1):\n"
      "  | step 10\n"
      "  | step 11\n"
      "[launcher] rank 2 then: exit code 69 (log: logs/2)\n"
      "[launcher] ranks 0,3 were stopped by the launcher\n"
      "[launcher] exits with return code = 137\n");
}

// The kernel's counter is not always to be seen; what the ranks held is.
TEST(Report, MEM_01_AKilledRankSaysWhatItHeld) {
  JobEnd end;
  end.host = "node7";
  end.ranks = {Ended(0, 60, 0, SIGKILL), Ended(1, 61, 69)};
  end.ranks[0].peak_bytes = int64_t{18} << 30;
  end.ranks[1].peak_bytes = int64_t{12} << 30;
  end.first_failure = 0;
  end.memory = {.limit = int64_t{32} << 30};
  const std::string near = RenderReport(end);
  EXPECT_NE(near.find("killed by SIGKILL, probably host out of memory, limit 32.00 GiB, all of this host; rank 0 had "
                      "18.00 GiB resident at most, all ranks of this host 30.00 GiB"),
            std::string::npos)
      << near;
  end.memory.limit = int64_t{64} << 30;
  const std::string far = RenderReport(end);
  EXPECT_EQ(far.find("out of memory"), std::string::npos) << far;
  EXPECT_NE(far.find("no kill for want of memory; rank 0 had 18.00 GiB resident"), std::string::npos) << far;
  end.oom_kills = 2;
  EXPECT_NE(RenderReport(end).find("host out of memory (2 oom kills"), std::string::npos);
}

// What all ranks found out together was read on the console already.
TEST(Report, SameErrorOfAnotherRankIsNotRepeated) {
  JobEnd end;
  end.host = "node7";
  end.ranks = {Ended(0, 5.1, 65), Ended(1, 5, 65)};
  end.ranks[0].shown = true;
  end.ranks[0].tail = {"step 1", "error TRN010: full", "  fix: free space"};
  end.ranks[1].tail = {"error TRN010: full", "  fix: free space"};
  end.first_failure = FirstFailure(end.ranks);
  const std::string text = RenderReport(end);
  EXPECT_NE(text.find("its error is the one that stands above"), std::string::npos) << text;
  EXPECT_EQ(text.find("TRN010"), std::string::npos) << text;
  end.ranks[1].tail[0] = "error TRN010: another folder";
  EXPECT_NE(RenderReport(end).find("another folder"), std::string::npos);
}

TEST(Report, NothingToSay) {
  JobEnd end;
  end.ranks = {Ended(0, 1, 0)};
  EXPECT_EQ(JobExitCode(end), 0);
  EXPECT_EQ(RenderReport(end), "");
}

TEST(Report, EndByTheUser) {
  JobEnd end;
  end.ranks = {Ended(0, 1, 0, SIGTERM, true)};
  end.user_signal = SIGINT;
  EXPECT_EQ(JobExitCode(end), 130);
  EXPECT_EQ(RenderReport(end),
            "[launcher] ended by SIGINT\n[launcher] rank 0 was stopped by the launcher\n[launcher] exits with return "
            "code = 130\n");
}

TEST(Report, WhatIsNotWholeIsNamed) {
  JobEnd end;
  end.ranks = {Ended(0, 1, 0)};
  end.ranks[0].log_problem = "No space left on device";
  end.dropped_bytes = 4096;
  EXPECT_EQ(RenderReport(end),
            "[launcher] logs/0 is not whole: No space left on device\n"
            "[launcher] the console took no output for 5 s: 4096 bytes stand in the log files only\n");
}

TEST(Report, RankRanges) {
  EXPECT_EQ(RankRanges({7, 0, 1, 2, 3, 4, 6}), "0-4,6,7");
  EXPECT_EQ(RankRanges({5}), "5");
}

}  // namespace
}  // namespace trireme::launcher
