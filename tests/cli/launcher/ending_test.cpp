// How jobs end: who is blamed, with which exit code, and that nothing is left.
#include <gtest/gtest.h>
#include <sys/types.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/cli/launcher/command.h"

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

#define EXPECT_HAS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "looked for: " << (part) << "\nin: " << (text)
#define EXPECT_LACKS(text, part) \
  EXPECT_EQ((text).find(part), std::string::npos) << "must not hold: " << (part) << "\nin: " << (text)

// The command, with launch flags that every test wants.
Words Job(int ranks, const Words& actions, const Words& flags = {}) {
  Words words = {"launch", "--cpu", "--num_gpus", std::to_string(ranks), "--log_level=error"};
  words.insert(words.end(), flags.begin(), flags.end());
  words.push_back(kHelper);
  words.insert(words.end(), actions.begin(), actions.end());
  return words;
}

int CountOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

bool ThreeAreReady(Command& command) {
  return command.WaitFor("[0] ready") && command.WaitFor("[1] ready") && command.WaitFor("[2] ready");
}

TEST(Ending, LCH_08_FailingRankEndsAllAndStandsFirst) {
  Command command(kTrireme, Job(4, {"0:print=rank 0 works", "2:sleep=300", "2:eprint=the real cause", "2:exit=3",
                                    "*:sleep=60000"}));
  const Outcome o = command.Wait();
  EXPECT_EQ(o.code, 3);
  EXPECT_EQ(o.out, "rank 0 works\n");
  EXPECT_EQ(o.err.rfind("[launcher] rank 2 (local rank 2, CPU) on host ", 0), 0U) << o.err;
  EXPECT_HAS(o.err, ": exit code 3\n");
  EXPECT_HAS(o.err, "  | the real cause\n");
  EXPECT_HAS(o.err, "[launcher] ranks 0,1,3 were stopped by the launcher\n[launcher] exits with return code = 3\n");
  EXPECT_LT(o.seconds, 10);  // the grace was not used up
  EXPECT_TRUE(command.Left(0).empty());
}

TEST(Ending, LCH_15_SignalsAreNamedWithTheirCause) {
  const Outcome killed = RunTrireme(Job(2, {"1:kill=9", "*:sleep=60000"}));
  EXPECT_EQ(killed.code, 137);
  EXPECT_HAS(killed.err, "killed by signal 9 (SIGKILL)\n[launcher] likely cause: ");
  const Outcome bus = RunTrireme(Job(2, {"1:kill=7", "*:sleep=60000"}));
  EXPECT_EQ(bus.code, 135);
  EXPECT_HAS(bus.err, "killed by signal 7 (SIGBUS)\n[launcher] likely cause: shared memory is too small (/dev/shm, ");
  EXPECT_EQ(RunTrireme(Job(1, {"*:kill=11"})).code, 139);
}

TEST(Ending, KilledRankLeavesNoGrandchildren) {
  Command command(kTrireme,
                  Job(3, {"*:child", "*:daemon", "1:sleep=300", "1:kill=9", "*:sleep=60000"}, {"--term_grace=1"}));
  const Outcome o = command.Wait();
  EXPECT_EQ(o.code, 137);
  EXPECT_TRUE(command.Left(0).empty());  // the launcher returns when all are gone
}

TEST(Ending, RankThatIgnoresSigtermIsKilledAfterTheGrace) {
  Command command(kTrireme, Job(8, {"*:ignore=15", "0:sleep=500", "0:exit=4", "*:sleep=60000"}, {"--term_grace=2"}));
  const Outcome o = command.Wait();
  EXPECT_EQ(o.code, 4);
  EXPECT_GE(o.seconds, 2);
  EXPECT_LT(o.seconds, 12);  // all at once: one after another would take 14
  EXPECT_TRUE(command.Left(0).empty());
}

TEST(Ending, CommunicationFailureBlamesTheRankThatCausedIt) {
  // Rank 0 notices the loss before the launcher hears of rank 2's own error.
  const Outcome o = RunTrireme(Job(3, {"0:sleep=200", "0:eprint=lost contact", "0:exit=69", "2:sleep=500",
                                       "2:eprint=the real cause", "2:exit=70", "*:sleep=60000"}));
  EXPECT_EQ(o.code, 70);
  EXPECT_HAS(o.err, "[launcher] rank 2 (local rank 2");
  EXPECT_HAS(o.err, "  | the real cause\n");
  EXPECT_HAS(o.err, "[launcher] rank 0 then: exit code 69");
  const Outcome alone = RunTrireme(Job(2, {"1:exit=69", "*:sleep=60000"}));
  EXPECT_EQ(alone.code, 69);
  EXPECT_HAS(alone.err, "lost contact with another rank");
}

TEST(Ending, LCH_16_ConfigErrorOfAllRanksIsPrintedOnce) {
  const Outcome o =
      RunTrireme(Job(8, {"!0:eprint=error CFG001", "!0:exit=78", "0:sleep=100", "0:eprint=error CFG001", "0:exit=78"}));
  EXPECT_EQ(o.code, 78);
  EXPECT_EQ(CountOf(o.err, "error CFG001"), 1) << o.err;
  EXPECT_HAS(o.err, "[launcher] rank 0 (local rank 0");
}

TEST(Ending, LCH_16_RuntimeErrorIsSummedUpAndTheRestIsInFiles) {
  TempFolder logs;
  const Outcome o = RunTrireme(Job(8,
                                   {"5:sleep=300", "5:eprint=disk full", "5:exit=65", "*:onterm=70", "0:sleep=60000",
                                    "*:eprint=noise", "*:sleep=60000"},
                                   {"--log_dir", logs.path().string()}));
  EXPECT_EQ(o.code, 65);
  EXPECT_EQ(o.err.rfind("[launcher] rank 5 ", 0), 0U) << o.err;
  EXPECT_EQ(CountOf(o.err, "disk full"), 1);
  EXPECT_LACKS(o.err, "noise");
  std::ifstream in(logs.path() / "latest_rank3.log");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "noise\n");
}

// Rank 0 says the same as the rank to blame, but after its end: by then it is not shown any more, so the report must
// show it.
TEST(Ending, ErrorThatTheConsoleDidNotShowIsInTheReport) {
  const Outcome o = RunTrireme(Job(2, {"1:sleep=500", "1:eprint=error TST001: full", "1:exit=65", "0:ignore=15",
                                       "0:sleep=1500", "0:eprint=error TST001: full", "0:exit=65"}));
  EXPECT_EQ(o.code, 65);
  EXPECT_EQ(CountOf(o.err, "error TST001: full"), 1) << o.err;
}

TEST(Ending, LogsStayAfterAFailureOnly) {
  TempFolder temp;
  const std::map<std::string, std::string> environment = {{"TMPDIR", temp.path().string()}};
  EXPECT_EQ(RunTrireme(Job(2, {"*:print=fine"}), environment).code, 0);
  EXPECT_TRUE(fs::is_empty(temp.path()));
  const Outcome o = RunTrireme(Job(2, {"1:print=not fine", "1:exit=1", "*:sleep=60000"}), environment);
  EXPECT_EQ(o.code, 1);
  ASSERT_FALSE(fs::is_empty(temp.path()));
  EXPECT_HAS(o.err, (fs::directory_iterator(temp.path())->path() / "2").string());  // the year of the file's stamp
}

class StopSignal : public ::testing::TestWithParam<int> {};

TEST_P(StopSignal, LCH_08_EndsTheJobWithItsOwnCode) {
  Command command(kTrireme, Job(3, {"*:child", "*:daemon", "*:print=ready", "*:sleep=60000"},
                                {"--term_grace=1", "--tee_ranks=all"}));
  ASSERT_TRUE(ThreeAreReady(command));
  kill(command.pid(), GetParam());
  const Outcome o = command.Wait();
  EXPECT_EQ(o.code, 128 + GetParam());
  EXPECT_HAS(o.err, "[launcher] ended by SIG");
  EXPECT_TRUE(command.Left(0).empty());
  EXPECT_LT(o.seconds, 10);
}
INSTANTIATE_TEST_SUITE_P(All, StopSignal, ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGQUIT));

TEST(Ending, SigtermGivesRanksTimeToEndWell) {
  Command command(kTrireme, Job(2, {"*:onterm=0", "*:print=ready", "*:sleep=60000"}));
  ASSERT_TRUE(command.WaitFor("ready"));
  kill(command.pid(), SIGTERM);
  const Outcome o = command.Wait();
  EXPECT_EQ(o.code, 143);
  EXPECT_LT(o.seconds, 10);
}

TEST(Ending, SecondInterruptKillsAtOnce) {
  Command command(kTrireme, Job(2, {"*:ignore=15", "*:print=ready", "*:sleep=60000"}, {"--term_grace=60"}));
  ASSERT_TRUE(command.WaitFor("ready"));
  kill(command.pid(), SIGINT);
  EXPECT_FALSE(command.Left(0.3).empty());
  kill(command.pid(), SIGINT);
  const Outcome o = command.Wait();
  EXPECT_EQ(o.code, 130);
  EXPECT_LT(o.seconds, 40);
  EXPECT_TRUE(command.Left(0).empty());
}

TEST(Ending, LCH_08_KilledLauncherLeavesNothing) {
  Command command(kTrireme, Job(3, {"*:child", "*:daemon", "*:print=ready", "*:sleep=60000"},
                                {"--term_grace=1", "--tee_ranks=all"}));
  ASSERT_TRUE(ThreeAreReady(command));
  EXPECT_EQ(command.Running().size(), 11U);  // front, supervisor, 3 ranks with 2 processes of their own each
  kill(command.pid(), SIGKILL);
  EXPECT_EQ(command.Wait().code, 137);
  EXPECT_TRUE(command.Left(10).empty());
}

TEST(Ending, KilledSupervisorLeavesNothing) {
  Command command(kTrireme, Job(3, {"*:child", "*:daemon", "*:print=ready", "*:sleep=60000"}, {"--tee_ranks=all"}));
  ASSERT_TRUE(ThreeAreReady(command));
  for (const pid_t pid : command.Running()) {
    std::string name;
    std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
    if (name == "trireme-superv") kill(pid, SIGKILL);
  }
  const Outcome o = command.Wait();
  EXPECT_EQ(o.code, 70);
  EXPECT_HAS(o.err, "the supervisor of the ranks was ended by SIGKILL");
  EXPECT_TRUE(command.Left(0).empty());
}

TEST(Ending, RankThatEndsEarlyAndWellIsNoFailure) {
  const Outcome o = RunTrireme(Job(2, {"1:exit=0", "0:sleep=300", "0:print=done"}));
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(o.out, "done\n");
  EXPECT_EQ(o.err, "");
}

TEST(Ending, DaemonsOfAGoodJobAreEnded) {
  Command command(kTrireme, Job(2, {"*:daemon"}));
  EXPECT_EQ(command.Wait().code, 0);
  EXPECT_TRUE(command.Left(0).empty());
}

TEST(Ending, UserSignalReachesEveryRank) {
  Command command(kTrireme,
                  Job(2, {"*:ignore=10", "*:sleep=300", "0:print=ready", "*:sleep=500", "0:print=still here"}));
  ASSERT_TRUE(command.WaitFor("ready"));
  kill(command.pid(), SIGUSR1);
  EXPECT_EQ(command.Wait().out, "ready\nstill here\n");
  Command deadly(kTrireme, Job(2, {"0:ignore=10", "0:print=ready", "*:sleep=60000"}));
  ASSERT_TRUE(deadly.WaitFor("ready"));
  kill(deadly.pid(), SIGUSR1);
  EXPECT_EQ(deadly.Wait().code, 128 + SIGUSR1);  // rank 1 does not know the signal
}

TEST(Ending, ReaderOfTheConsoleMayGoAway) {
  TempFolder logs;
  const Outcome o =
      Command("/bin/sh", {"-c", kTrireme + " launch --cpu --log_level=error --log_dir " + logs.path().string() + " " +
                                    kHelper + " '*:flood=50000' | head -n 1"})
          .Wait();
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(fs::file_size(logs.path() / "latest_rank0.log"), 50000U * 100);
}

}  // namespace
}  // namespace trireme::testing
