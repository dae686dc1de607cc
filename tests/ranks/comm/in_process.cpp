// In-process ranks: results, order of summation, agreement, time-outs, aborts.
#include "engine/comm/in_process.h"

#include <ATen/ops/zeros.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "engine/base/error.h"
#include "tests/ranks/comm/operations.h"
#include "tests/support/run_threads.h"

namespace trireme::test {
namespace {

using std::chrono::milliseconds;

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class InProcess : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, InProcess, ::testing::Values(1, 2, 3, 4));

TEST_P(InProcess, EveryOperationEqualsPlainSums) {
  EXPECT_EQ("", RunThreadRanks(GetParam(), [](ThreadRank& self) { CheckEverything(*self.MakeCommunicator("dp0")); }));
}

TEST(InProcessOrder, SixteenBitSumsRoundOnce) {
  EXPECT_EQ("", RunThreadRanks(3, [](ThreadRank& self) { CheckSixteenBitSums(*self.MakeCommunicator("dp0")); }));
}

TEST(InProcessOrder, SumsRunFromRankZeroUpwards) {
  // (1e30 + -1e30) + 1 = 1 from the left, 0 in any order that adds 1 to 1e30 first.
  EXPECT_EQ("", RunThreadRanks(3, [](ThreadRank& self) {
              const auto dp = self.MakeCommunicator("dp0");
              const float values[] = {1e30F, -1e30F, 1.0F};
              const at::Tensor tensor = at::full({7}, values[self.rank], at::kFloat);
              for (int i = 0; i < 50; ++i) {
                const at::Tensor copy = tensor.clone();
                dp->AllReduce(copy, ReduceOp::kSum);
                ASSERT_TRUE(copy.equal(at::full({7}, 1.0F, at::kFloat)));
              }
            }));
}

TEST(InProcessOrder, MaximumOfNanIsNan) {
  EXPECT_EQ("", RunThreadRanks(2, [](ThreadRank& self) {
              const at::Tensor tensor = at::full({3}, self.rank == 0 ? std::nan("") : 5.0, at::kDouble);
              self.MakeCommunicator("dp0")->AllReduce(tensor, ReduceOp::kMax);
              EXPECT_TRUE(tensor.isnan().all().item<bool>());
            }));
}

TEST(InProcessGroups, SubgroupsAndLanesRunSideBySide) {
  EXPECT_EQ(
      "", RunThreadRanks(4, [](ThreadRank& self) {
        const int pair = self.rank / 2;
        const auto tp = self.comms->MakeCommunicator({2 * pair, 2 * pair + 1}, self.rank, pair == 0 ? "tp0" : "tp1");
        const auto dp = self.MakeCommunicator("dp0");
        EXPECT_EQ(tp->rank(), self.rank % 2);
        EXPECT_EQ(tp->global_ranks()[1], 2 * pair + 1);
        std::thread lane([&] {  // one lane's thread a communicator
          for (int i = 0; i < 200; ++i) {
            const at::Tensor tensor = at::full({33}, self.rank, at::kFloat);
            tp->AllReduce(tensor, ReduceOp::kSum);
            EXPECT_TRUE(tensor.equal(at::full({33}, 4 * pair + 1, at::kFloat)));
          }
        });
        for (int i = 0; i < 200; ++i) {
          const at::Tensor tensor = at::full({65}, self.rank, at::kFloat);
          dp->AllReduce(tensor, ReduceOp::kSum);
          EXPECT_TRUE(tensor.equal(at::full({65}, 6, at::kFloat)));
        }
        lane.join();
      }));
}

TEST(InProcessGroups, ANameMayBeUsedAgain) {
  EXPECT_EQ("", RunThreadRanks(2, [](ThreadRank& self) {
              for (int i = 0; i < 3; ++i) {
                const at::Tensor tensor = at::full({1}, 1, at::kInt);
                self.MakeCommunicator("dp0")->AllReduce(tensor, ReduceOp::kSum);
                EXPECT_EQ(tensor.item<int>(), 2);
              }
            }));
}

TEST(InProcessGroups, DifferentRanksUnderOneNameAreRefused) {
  const std::string text = RunThreadRanks(3, [](ThreadRank& self) {
    std::vector<int> ranks{0, 1, 2};
    if (self.rank == 1) ranks = {0, 1};
    self.comms->MakeCommunicator(ranks, self.rank, "dp0");
  });
  EXPECT_TRUE(Contains(text, "COM016")) << text;
}

TEST(InProcessGroups, ABarrierHoldsEverybodyBack) {
  std::atomic<int> entered = 0;
  EXPECT_EQ("", RunThreadRanks(3, [&](ThreadRank& self) {
              const auto dp = self.MakeCommunicator("dp0");
              for (int i = 1; i <= 50; ++i) {
                if (self.rank == i % 3) std::this_thread::sleep_for(milliseconds(1));
                ++entered;
                dp->Barrier();
                EXPECT_GE(entered.load(), 3 * i);
              }
            }));
}

TEST(InProcessTransfers, ReceivesOfOneGroupComeInAnyOrder) {
  EXPECT_EQ("", RunThreadRanks(3, [](ThreadRank& self) {
              const auto pp = self.MakeCommunicator("pp0");
              const at::Tensor a = at::zeros({4}), b = at::zeros({4});
              if (self.rank == 0) {
                pp->GroupStart();
                pp->Recv(a, 1);  // comes last: rank 1 waits for rank 2, which waits for this rank to take its message
                pp->Recv(b, 2);
                pp->GroupEnd();
                EXPECT_TRUE(a.equal(at::full({4}, 2, at::kFloat)) && b.equal(at::full({4}, 2, at::kFloat)));
              } else if (self.rank == 1) {
                pp->Recv(a, 2);
                pp->Send(a, 0);
              } else {
                pp->Send(at::full({4}, 2, at::kFloat), 0);
                pp->Send(at::full({4}, 2, at::kFloat), 1);
              }
            }));
}

TEST(InProcessErrors, ATimeoutNamesTheMissingRankAndWhereItIs) {
  const auto world = MakeInProcessWorld(3, milliseconds(200));
  const std::string text = RunThreadRanks(world, [](ThreadRank& self) {
    const auto dp = self.MakeCommunicator("dp0");
    const auto pp = self.MakeCommunicator("pp0");
    dp->Barrier();
    if (self.rank == 2) {
      std::this_thread::sleep_for(milliseconds(20));
      pp->Recv(at::zeros({8}), 0);
    } else {
      dp->AllReduce(at::zeros({1024}), ReduceOp::kSum);
    }
  });
  EXPECT_TRUE(Contains(text, "COM012")) << text;
  EXPECT_TRUE(Contains(text, "all_reduce #1 fp32[1024] waited 0.2 s; missing: rank 2")) << text;
  EXPECT_TRUE(Contains(text, "waits in pp0: recv #0 fp32[8] from rank 0 of the group")) << text;
  EXPECT_TRUE(Contains(text, "last done here: barrier #0")) << text;
  EXPECT_TRUE(Contains(text, "group dp0, rank")) << text;
  EXPECT_TRUE(Contains(text, "barrier #0: begun")) << "no flight record: " << text;
}

TEST(InProcessErrors, TwoSendsAtEachOtherTimeOut) {
  const auto world = MakeInProcessWorld(2, milliseconds(100));
  const std::string text = RunThreadRanks(world, [](ThreadRank& self) {
    const auto pp = self.MakeCommunicator("pp0");
    pp->Send(at::zeros({3}), 1 - self.rank);
    pp->Recv(at::zeros({3}), 1 - self.rank);
  });
  EXPECT_TRUE(Contains(text, "COM012") && Contains(text, "waits in pp0: send #0 fp32[3]")) << text;
}

TEST(InProcessErrors, HNG_06_RanksInDifferentOperationsAreNamed) {
  const std::string text = RunThreadRanks(2, [](ThreadRank& self) {
    const auto dp = self.MakeCommunicator("dp0");
    if (self.rank == 0) dp->AllGather(at::zeros({80}), at::zeros({160}));
    if (self.rank == 1) dp->Broadcast(at::zeros({80}), 0);
  });
  EXPECT_TRUE(Contains(text, "COM011")) << text;
  EXPECT_TRUE(Contains(text, "rank 0: all_gather #0 fp32[80]; rank 1: broadcast #0 fp32[80]")) << text;
}

TEST(InProcessErrors, HNG_06_RanksWithDifferentSizesOrTypesAreNamed) {
  const std::string sizes = RunThreadRanks(2, [](ThreadRank& self) {
    self.MakeCommunicator("dp0")->AllReduce(at::zeros({80 + self.rank}), ReduceOp::kSum);
  });
  EXPECT_TRUE(Contains(sizes, "rank 0: all_reduce #0 fp32[80]; rank 1: all_reduce #0 fp32[81]")) << sizes;
  const std::string types = RunThreadRanks(2, [](ThreadRank& self) {
    const auto pp = self.MakeCommunicator("pp0");
    if (self.rank == 0) pp->Send(at::zeros({4}), 1);
    if (self.rank == 1) pp->Recv(at::zeros({4}, at::kDouble), 0);
  });
  EXPECT_TRUE(Contains(types, "COM011") && Contains(types, "recv #0 fp64[4]") && Contains(types, "send #0 fp32[4]"))
      << types;
}

TEST(InProcessErrors, AnExceptionOnOneRankWakesTheOthersInEveryGroup) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string text = RunThreadRanks(4, [](ThreadRank& self) {
    const auto dp = self.MakeCommunicator("dp0");
    const auto pp = self.MakeCommunicator("pp0");
    if (self.rank == 3) {
      std::this_thread::sleep_for(milliseconds(20));
      throw std::runtime_error("the disk is full");
    }
    if (self.rank == 0) pp->Recv(at::zeros({8}), 1);
    if (self.rank == 1) pp->Send(at::zeros({8}), 2);
    if (self.rank == 2) dp->Barrier();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(text.find("rank 3: the disk is full"), 0U) << text;
  for (const char* woken : {"\nrank 0: error COM013", "\nrank 1: error COM013", "\nrank 2: error COM013"}) {
    EXPECT_TRUE(Contains(text, woken)) << text;
  }
  EXPECT_TRUE(Contains(text, "rank 3 ended the job: the disk is full")) << text;
}

TEST(InProcessErrors, AbortWakesAndEndsEveryOperationAfterIt) {
  const std::string text = RunThreadRanks(2, [](ThreadRank& self) {
    const auto dp = self.MakeCommunicator("dp0");
    if (self.rank == 1) return dp->Abort();
    try {
      dp->AllReduce(at::zeros({5}), ReduceOp::kSum);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.id(), "COM013");
      EXPECT_EQ(error.code(), ErrorCode::kCommunication);
      EXPECT_TRUE(Contains(error.what(), "rank 1 ended the job: called Abort in group dp0")) << error.what();
    }
    dp->Barrier();
  });
  EXPECT_TRUE(Contains(text, "rank 0: error COM013") && Contains(text, "barrier")) << text;
}

TEST(InProcessErrors, WrongShapesAreOurBug) {
  EXPECT_EQ("", RunThreadRanks(1, [](ThreadRank& self) {
              const auto dp = self.MakeCommunicator("dp0");
              EXPECT_THROW(dp->AllGather(at::zeros({3}), at::zeros({4})), Error);
              EXPECT_THROW(dp->AllGather(at::zeros({3}), at::zeros({3}, at::kDouble)), Error);
              EXPECT_THROW(dp->AllReduce(at::zeros({3}, at::kByte), ReduceOp::kSum), Error);
              EXPECT_THROW(dp->AllReduce(at::zeros({4, 4}).t(), ReduceOp::kSum), Error);
              EXPECT_THROW(dp->Broadcast(at::zeros({3}), 1), Error);
              EXPECT_THROW(dp->Send(at::zeros({3}), 0), Error);
              EXPECT_THROW(dp->GroupEnd(), Error);
            }));
}

}  // namespace
}  // namespace trireme::test
