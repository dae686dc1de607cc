// A process that dies during a save: the previous checkpoint still loads and is the one that is found.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "checkpoint/find.h"
#include "checkpoint/verify.h"
#include "tests/unit/checkpoint/saved.h"

namespace trireme::checkpoint {
namespace {

using testing::SaveRequest;
using testing::TemporaryRoot;

// Runs `body` in a child; kills it after `delay_us` if that is not negative. Returns the signal that ended it, 0 if it
// ended by itself.
int InChild(const std::function<void()>& body, int64_t delay_us = -1) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      body();
    } catch (...) {
      ::_exit(9);
    }
    ::_exit(0);
  }
  if (delay_us >= 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    ::kill(child, SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 9) << "the save threw";
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

// After a crash: what is found is the save before (or the new one, when the crash came after its commit), whole and bit
// for bit.
void ExpectUsable(const SaveRequest& before, const SaveRequest& after, bool& found_new) {
  const FindResult result = FindLatestComplete(before.root);
  ASSERT_TRUE(result.found.has_value());
  found_new = result.found->step == after.step;
  EXPECT_TRUE(found_new || result.found->step == before.step);
  EXPECT_EQ("", testing::Difference(*CheckpointReader::Open(result.found->directory), found_new ? after : before));
  EXPECT_TRUE(VerifyCheckpoint(result.found->directory).ok());
  EXPECT_EQ(result.found->step, CheckpointReader::Open(before.root)->info().step);
}

TEST(Kill, CKP_14_AtTwentyRandomPointsOfASave) {
  const char* text = std::getenv("TRIREME_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
  SCOPED_TRACE("TRIREME_SEED=" + std::to_string(seed));
  std::mt19937_64 engine(seed);
  int killed = 0;
  int64_t duration_us = 0;
  for (int round = 0; round < 20 && !HasFailure(); ++round) {
    const TemporaryRoot root;
    const SaveRequest before{.root = root.path(), .tag = "global_step1", .step = 1, .world = 2, .salt = 1};
    const SaveRequest after{
        .root = root.path(), .tag = round % 4 == 3 ? "global_step1" : "global_step2", .step = 2, .world = 3, .salt = 2};
    const auto start = std::chrono::steady_clock::now();
    testing::Save(before);
    const auto took = std::chrono::steady_clock::now() - start;
    duration_us = std::max(duration_us, std::chrono::duration_cast<std::chrono::microseconds>(took).count());
    const int64_t delay = std::uniform_int_distribution<int64_t>(0, duration_us * 3 / 2)(engine);
    if (InChild([&] { testing::Save(after); }, delay) == SIGKILL) ++killed;
    bool found_new = false;
    ExpectUsable(before, after, found_new);
  }
  EXPECT_GT(killed, 3);
}

// Every step that changes the disk, in turn: dies just before the n-th.
TEST(Kill, CKP_14_BeforeEachStepOfASave) {
  for (const bool same_tag : {false, true}) {
    int step = 0;
    for (bool died = true; died && !HasFailure(); ++step) {
      const TemporaryRoot root;
      const SaveRequest before{.root = root.path(), .tag = "a", .step = 1, .world = 1, .salt = 1};
      testing::Save(before);
      SaveRequest after{.root = root.path(), .tag = same_tag ? "a" : "b", .step = 2, .world = 2, .salt = 2};
      std::string name;
      int left = step;
      after.observer = [&](std::string_view) {
        if (left-- == 0) ::raise(SIGKILL);
      };
      died = InChild([&] { testing::Save(after); }) == SIGKILL;
      bool found_new = false;
      ExpectUsable(before, after, found_new);
      EXPECT_TRUE(died || found_new);
      if (died && step % 4 == 0) {  // the next save is not hindered by what the dead one left
        testing::Save({.root = root.path(), .tag = "c", .step = 3, .world = 1, .salt = 3});
        EXPECT_EQ(3, FindLatestComplete(root.path()).found->step);
      }
    }
    EXPECT_GT(step, 15) << "a save has that many steps";
  }
}

TEST(Kill, TheFirstSaveLeavesNothingToResumeFrom) {
  const TemporaryRoot root;
  SaveRequest request{.root = root.path()};
  request.observer = [](std::string_view step) {
    if (step == "manifest") ::raise(SIGKILL);
  };
  EXPECT_EQ(SIGKILL, InChild([&] { testing::Save(request); }));
  const FindResult result = FindLatestComplete(root.path());
  EXPECT_FALSE(result.found.has_value());
  ASSERT_EQ(1u, result.warnings.size());
  EXPECT_NE(std::string::npos, result.warnings[0].find("global_step7.tmp."));
}

}  // namespace
}  // namespace trireme::checkpoint
