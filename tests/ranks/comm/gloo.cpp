// Gloo between processes: results, agreement with the in-process back end, and what the ranks are told when one is
// missing.
#include <ATen/ops/zeros.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "engine/base/error.h"
#include "engine/comm/backends.h"
#include "tests/ranks/comm/operations.h"
#include "tests/support/run_ranks.h"

namespace trireme::test {
namespace {

using std::chrono::milliseconds;

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The error of `run`, which must throw one.
std::string Caught(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCommunication);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

class Gloo : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, Gloo, ::testing::Values(1, 2, 3));

TEST_P(Gloo, EveryOperationEqualsPlainSums) {
  EXPECT_EQ("", RunRanks(GetParam(), 120, [](RankContext& ctx) { CheckEverything(*ctx.MakeGloo("dp0")); }));
}

TEST(GlooOrder, SixteenBitSumsRoundOnce) {
  EXPECT_EQ("", RunRanks(3, 60, [](RankContext& ctx) { CheckSixteenBitSums(*ctx.MakeGloo("dp0")); }));
}

TEST(GlooLong, SegmentsOfLongTensorsFitTogether) {
  EXPECT_EQ("", RunRanks(3, 120, [](RankContext& ctx) {
              const auto dp = ctx.MakeGloo("dp0");
              CheckReductions(*dp, 400'009, at::kDouble);  // segments have 1 MiB from each rank, 393216 elements of all
              CheckCopies(*dp, 400'009, at::kDouble);
            }));
}

TEST(GlooOrder, SumsRunFromRankZeroUpwards) {
  for (const int64_t n : {7, 100'003}) {  // both ways of all-reduce
    EXPECT_EQ("", RunRanks(3, 60, [n](RankContext& ctx) {
                const float values[] = {1e30F, -1e30F, 1.0F};
                const at::Tensor tensor = at::full({n}, values[ctx.rank], at::kFloat);
                ctx.MakeGloo("dp0")->AllReduce(tensor, ReduceOp::kSum);
                EXPECT_TRUE(tensor.equal(at::full({n}, 1.0F, at::kFloat)));
              }));
  }
}

TEST(GlooGroups, SubgroupsSideBySideAndNamesUsedAgain) {
  EXPECT_EQ("", RunRanks(3, 60, [](RankContext& ctx) {
              for (int i = 0; i < 2; ++i) {
                const auto dp = ctx.MakeGloo("dp0");
                std::unique_ptr<Communicator> pair;
                if (ctx.rank != 1)
                  pair = MakeGlooCommunicator(ctx.store(), {0, 2}, ctx.rank, "tp0", milliseconds(30'000));
                std::thread lane([&] {
                  for (int k = 0; pair && k < 50; ++k) {
                    const at::Tensor tensor = at::full({40}, ctx.rank + 1, at::kFloat);
                    pair->AllReduce(tensor, ReduceOp::kSum);
                    EXPECT_TRUE(tensor.equal(at::full({40}, 4, at::kFloat)));
                  }
                });
                for (int k = 0; k < 50; ++k) {
                  const at::Tensor tensor = at::full({50}, ctx.rank + 1, at::kFloat);
                  dp->AllReduce(tensor, ReduceOp::kSum);
                  EXPECT_TRUE(tensor.equal(at::full({50}, 6, at::kFloat)));
                }
                lane.join();
              }
            }));
}

TEST(GlooErrors, HNG_05_ATimeoutNamesTheMissingRank) {
  EXPECT_EQ("", RunRanks(3, 60, [](RankContext& ctx) {
              const auto dp = ctx.MakeGloo("dp0", milliseconds(1500));
              dp->Barrier();
              std::string text;
              if (ctx.rank != 1) text = Caught([&] { dp->AllReduce(at::zeros({1024}), ReduceOp::kSum); });
              ctx.store()->Barrier("end", milliseconds(20'000));  // rank 0 serves the store until all have reported
              if (ctx.rank == 1) return;
              EXPECT_TRUE(Contains(text, "all_reduce #1 fp32[1024]")) << text;
              EXPECT_TRUE(Contains(text, "missing, in no operation of the group or ended: rank 1")) << text;
              EXPECT_TRUE(Contains(text, "COM012") || Contains(text, "failed first")) << text;
              EXPECT_TRUE(Contains(text, "barrier #0: begun")) << text;
            }));
}

TEST(GlooErrors, HNG_06_RanksInDifferentOperationsAreNamed) {
  EXPECT_EQ("", RunRanks(2, 60, [](RankContext& ctx) {
              const auto dp = ctx.MakeGloo("dp0", milliseconds(1500));
              const std::string text = Caught([&] {
                if (ctx.rank == 0) dp->AllGather(at::zeros({80}), at::zeros({160}));
                if (ctx.rank == 1) dp->AllReduce(at::zeros({80}), ReduceOp::kSum);
              });
              const char* other =
                  ctx.rank == 0 ? "rank 1 was in all_reduce #0 fp32[80]" : "rank 0 was in all_gather #0 fp32[80]";
              EXPECT_TRUE(Contains(text, other)) << text;
              ctx.store()->Barrier("end", milliseconds(20'000));
            }));
}

TEST(GlooErrors, HNG_07_AKilledRankIsNoticedAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string failed = RunRanks(3, 60, [](RankContext& ctx) {
    const auto dp = ctx.MakeGloo("dp0", milliseconds(50'000));
    dp->Barrier();
    if (ctx.rank == 2) kill(getpid(), SIGKILL);
    const std::string text = Caught([&] { dp->Barrier(); });
    EXPECT_TRUE(Contains(text, "COM014")) << text;
    EXPECT_TRUE(Contains(text, "or ended: rank 2")) << text;
    std::this_thread::sleep_for(milliseconds(500));
  });
  EXPECT_EQ(failed, "rank 2 killed by signal 9 (Killed)\n");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(GlooErrors, AbortFromAnotherThreadEndsTheWaitHereAndElsewhere) {
  EXPECT_EQ("", RunRanks(2, 60, [](RankContext& ctx) {
              const auto dp = ctx.MakeGloo("dp0", milliseconds(50'000));
              dp->Barrier();
              if (ctx.rank == 0) {
                std::thread aborter([&] {
                  std::this_thread::sleep_for(milliseconds(200));
                  dp->Abort();
                });
                const std::string text = Caught([&] { dp->Recv(at::zeros({1000}), 1); });
                EXPECT_TRUE(Contains(text, "COM013")) << text;
                aborter.join();
              } else {
                const std::string text = Caught([&] { dp->AllReduce(at::zeros({1000}), ReduceOp::kSum); });
                EXPECT_TRUE(Contains(text, "COM014") && Contains(text, "lost rank 0")) << text;
              }
              ctx.store()->Barrier("end", milliseconds(20'000));
            }));
}

TEST(GlooErrors, ARankThatDoesNotComeToMakeTheGroupIsNamed) {
  EXPECT_EQ(
      "", RunRanks(2, 60, [](RankContext& ctx) {
        ctx.store();
        if (ctx.rank == 0) {
          const std::string text = Caught([&] { ctx.MakeGloo("dp0", milliseconds(300)); });
          EXPECT_TRUE(Contains(text, "COM016") && Contains(text, "rank 1 did not come to make the group within 0.3 s"))
              << text;
        }
        ctx.store()->Barrier("end", milliseconds(20'000));
      }));
}

TEST(RunRanks, TellsOfFailuresExceptionsSignalsAndHangs) {
  const std::string text = RunRanks(4, 3, [](RankContext& ctx) {
    EXPECT_NE(ctx.rank, 0) << "a wrong sum";
    if (ctx.rank == 1) throw std::runtime_error("no more disk");
    if (ctx.rank == 2) raise(SIGSEGV);
    if (ctx.rank == 3) std::this_thread::sleep_for(std::chrono::seconds(100));
  });
  EXPECT_TRUE(Contains(text, "a wrong sum") && Contains(text, "gloo.cpp")) << text;
  EXPECT_TRUE(Contains(text, "rank 1: no more disk\n")) << text;
  EXPECT_TRUE(Contains(text, "rank 2 killed by signal 11")) << text;
  EXPECT_TRUE(Contains(text, "rank 3 killed by signal 14")) << text;
}

}  // namespace
}  // namespace trireme::test
