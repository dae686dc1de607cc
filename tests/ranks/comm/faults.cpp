// Faults: each kind changes the result or raises, on every operation, where and only where it was aimed.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "engine/base/error.h"
#include "engine/comm/in_process.h"
#include "tests/ranks/comm/operations.h"
#include "tests/support/run_threads.h"

namespace trireme::test {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kCount = 6;

// One of each operation; returns what the rank holds at the end.
std::vector<at::Tensor> RunAll(ThreadRank& self) {
  const auto dp = self.MakeCommunicator("dp0");
  const auto fresh = [&](int64_t n) { return Values(self.rank, n, at::kDouble, 3).contiguous(); };
  std::vector<at::Tensor> held;
  held.push_back(fresh(kCount));
  dp->AllReduce(held.back(), ReduceOp::kSum);
  held.push_back(fresh(kCount));
  dp->ReduceScatter(fresh(kCount * self.world), held.back(), ReduceOp::kSum);
  held.push_back(fresh(kCount * self.world));
  dp->AllGather(fresh(kCount), held.back());
  held.push_back(fresh(kCount));
  dp->Broadcast(held.back(), 1);
  held.push_back(fresh(kCount));
  if (self.rank == 0) dp->Send(held.back(), 2);
  if (self.rank == 2) dp->Recv(held.back(), 0);
  dp->Barrier();
  return held;
}

using Held = std::map<int, std::vector<at::Tensor>>;

Held RunWorld(const std::shared_ptr<InProcessWorld>& world) {
  Held held;
  std::mutex mutex;
  EXPECT_EQ("", RunThreadRanks(world, [&](ThreadRank& self) {
              const auto mine = RunAll(self);
              const std::lock_guard lock(mutex);
              held[self.rank] = mine;
            }));
  return held;
}

// "rank:place" of each tensor that differs.
std::vector<std::string> Differences(const Held& a, const Held& b) {
  std::vector<std::string> places;
  for (const auto& [rank, tensors] : a) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].equal(b.at(rank)[i])) places.push_back(std::to_string(rank) + ":" + std::to_string(i));
    }
  }
  return places;
}

TEST(CommFaults, CountsEveryOperationOnEveryRank) {
  const auto world = MakeInProcessWorld(3, milliseconds(5000));
  RunWorld(world);
  const auto operations = world->Operations();
  EXPECT_EQ(operations.size(), 3U * 5 + 2);  // five collectives on three ranks, a send and its receive
  for (const OperationCount& operation : operations) {
    EXPECT_EQ(operation.count, 1);
    EXPECT_EQ(operation.group, "dp0");
  }
  world->ResetCounts();
  EXPECT_TRUE(world->Operations().empty());
}

TEST(CommFaults, DroppingOrCorruptingAnyOneOperationShows) {
  const auto clean_world = MakeInProcessWorld(3, milliseconds(5000));
  const Held clean = RunWorld(clean_world);
  for (const OperationCount& operation : clean_world->Operations()) {
    if (operation.op == OpKind::kBarrier) continue;  // carries no data
    for (const Fault::Kind kind : {Fault::Kind::kDrop, Fault::Kind::kCorrupt}) {
      SCOPED_TRACE(::testing::Message() << Name(operation.op) << " on rank " << operation.rank << " kind "
                                        << static_cast<int>(kind));
      const auto world = MakeInProcessWorld(3, milliseconds(5000));
      world->Inject({.group = operation.group, .op = operation.op, .rank = operation.rank, .kind = kind, .element = 4});
      const auto places = Differences(clean, RunWorld(world));
      EXPECT_EQ(world->FaultsHit(), 1);
      if (operation.op == OpKind::kBroadcast && operation.rank == 1 && kind == Fault::Kind::kDrop) {
        EXPECT_EQ(places, (std::vector<std::string>{"0:3", "2:3"}));  // the root keeps its own value
      } else if (operation.op == OpKind::kSend) {
        EXPECT_EQ(places, (std::vector<std::string>{"2:4"}));  // the receiver suffers
      } else {
        const std::string own = std::to_string(operation.rank) + ":" + std::to_string(static_cast<int>(operation.op));
        const std::string received = "2:4";
        EXPECT_TRUE(std::count(places.begin(), places.end(), operation.op == OpKind::kRecv ? received : own))
            << "differences at " << places.size() << " places";
      }
      if (kind == Fault::Kind::kCorrupt) {
        EXPECT_EQ(places.size(), 1U);
      }
    }
  }
}

TEST(CommFaults, ADroppedContributionIsMissingAndItsOutputUntouched) {
  const auto world = MakeInProcessWorld(3, milliseconds(5000));
  world->Inject({.op = OpKind::kAllReduce, .rank = 1, .kind = Fault::Kind::kDrop});
  EXPECT_EQ("", RunThreadRanks(world, [](ThreadRank& self) {
              const auto dp = self.MakeCommunicator("dp0");
              for (const double expected : {self.rank == 1 ? 10.0 : 101.0, 111.0}) {  // the second one is whole again
                const double mine[] = {1, 10, 100};
                const at::Tensor tensor = at::full({7}, mine[self.rank], at::kDouble);
                dp->AllReduce(tensor, ReduceOp::kSum);
                EXPECT_TRUE(tensor.equal(at::full({7}, expected, at::kDouble))) << tensor[0].item<double>();
              }
            }));
}

TEST(CommFaults, TheNthOperationOfTheNamedGroupIsHit) {
  const auto world = MakeInProcessWorld(2, milliseconds(5000));
  world->Inject({.group = "tp0", .rank = 0, .nth = 3, .kind = Fault::Kind::kCorrupt, .element = 9, .amount = 0.5});
  EXPECT_EQ("", RunThreadRanks(world, [](ThreadRank& self) {
              const auto dp = self.MakeCommunicator("dp0");
              const auto tp = self.MakeCommunicator("tp0");
              for (int i = 0; i < 6; ++i) {
                const at::Tensor a = at::full({4}, 1, at::kDouble), b = at::full({4}, 1, at::kDouble);
                dp->AllReduce(a, ReduceOp::kSum);
                tp->AllReduce(b, ReduceOp::kSum);
                const at::Tensor expected = at::full({4}, 2, at::kDouble);
                EXPECT_TRUE(a.equal(expected));
                if (i == 3 && self.rank == 0) expected[1] += 0.5;  // element 9 modulo 4
                EXPECT_TRUE(b.equal(expected));
              }
            }));
  EXPECT_EQ(world->FaultsHit(), 1);
}

TEST(CommFaults, RoundingNeverHidesACorruption) {
  const auto world = MakeInProcessWorld(2, milliseconds(5000));
  world->Inject({.rank = 0, .kind = Fault::Kind::kCorrupt});
  EXPECT_EQ("", RunThreadRanks(world, [](ThreadRank& self) {
              const at::Tensor tensor = at::full({1}, 4096, at::kBFloat16);  // 8192 + 1 is 8192 in bf16
              self.MakeCommunicator("dp0")->AllReduce(tensor, ReduceOp::kSum);
              EXPECT_EQ(tensor.item<float>(), self.rank == 0 ? -8192 : 8192);
            }));
}

TEST(CommFaults, ADelayHoldsTheOthersUpAndChangesNothing) {
  const auto clean = RunWorld(MakeInProcessWorld(3, milliseconds(5000)));
  const auto world = MakeInProcessWorld(3, milliseconds(5000));
  world->Inject({.op = OpKind::kAllGather, .rank = 2, .kind = Fault::Kind::kDelay, .delay = milliseconds(80)});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(Differences(clean, RunWorld(world)).empty());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(80));
  EXPECT_EQ(world->FaultsHit(), 1);
}

TEST(CommFaults, ADelayBeyondTheTimeoutNamesTheLateRank) {
  const auto world = MakeInProcessWorld(3, milliseconds(100));
  world->Inject({.op = OpKind::kAllGather, .rank = 2, .kind = Fault::Kind::kDelay, .delay = milliseconds(60'000)});
  const auto begin = std::chrono::steady_clock::now();
  const std::string text = RunThreadRanks(world, [](ThreadRank& self) { RunAll(self); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(20'000)) << "the delay outlived the abort";
  EXPECT_NE(text.find("missing: rank 2"), std::string::npos) << text;
}

TEST(CommFaults, AThrowingRankWakesTheOthers) {
  const auto world = MakeInProcessWorld(3, milliseconds(5000));
  world->Inject({.op = OpKind::kReduceScatter, .rank = 1, .kind = Fault::Kind::kThrow});
  const std::string text = RunThreadRanks(world, [](ThreadRank& self) { RunAll(self); });
  EXPECT_EQ(text.find("rank 1: error COM015"), 0U) << text;
  EXPECT_NE(text.find("rank 1 ended the job: an injected fault stops reduce_scatter #1 fp64[6]"), std::string::npos)
      << text;
  EXPECT_NE(text.find("\nrank 0: error COM013"), std::string::npos) << text;
  EXPECT_NE(text.find("\nrank 2: error COM013"), std::string::npos) << text;
}

}  // namespace
}  // namespace trireme::test
