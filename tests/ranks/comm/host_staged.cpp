// Host-staged communication without a GPU: streams are threads, which copy and wait after random whiles. Every
// operation in order on several streams and groups, and what the streams and callers see when a rank fails or aborts.
#include "engine/comm/host_staged.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "engine/base/error.h"
#include "tests/ranks/comm/operations.h"
#include "tests/support/run_threads.h"
#include "tests/support/thread_device.h"

namespace trireme::test {
namespace {

using std::chrono::milliseconds;

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::unique_ptr<Communicator> Stage(std::unique_ptr<Communicator> host, const ThreadDeviceOptions& options = {},
                                    int64_t staging_bytes = kStagingBytes) {
  return MakeHostStagedCommunicator(std::move(host), std::make_unique<ThreadStagingDevice>(options), staging_bytes);
}

std::unique_ptr<Communicator> Stage(ThreadRank& self, const std::string& name, const ThreadDeviceOptions& options = {},
                                    int64_t staging_bytes = kStagingBytes) {
  return Stage(self.MakeCommunicator(name), options, staging_bytes);
}

std::string Caught(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// The error that has come to a group whose calls had returned before.
std::string Found(Communicator& group) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::string text = "no error";
  while (text == "no error" && std::chrono::steady_clock::now() < deadline) {
    text = Caught([&] { group.CheckHealth(); });
    std::this_thread::sleep_for(milliseconds(1));
  }
  return text;
}

TEST(HostStaged, EveryOperationEqualsPlainSums) {
  for (const int world : {1, 2, 3}) {
    EXPECT_EQ("", RunThreadRanks(world, [](ThreadRank& self) { CheckEverything(*Stage(self, "dp0")); }));
  }
}

TEST(HostStaged, LongTensorsGoInParts) {
  const auto world = MakeInProcessWorld(3, milliseconds(20'000));
  EXPECT_EQ("", RunThreadRanks(world, [](ThreadRank& self) {
              const auto dp = Stage(self, "dp0", {}, 240);  // 30 doubles, or 10 of each of three ranks
              CheckReductions(*dp, 101, at::kDouble);
              CheckReductions(*dp, 61, at::kBFloat16);
              CheckCopies(*dp, 101, at::kDouble);
              CheckCopies(*dp, 241, at::kByte);
            }));
  const auto operations = world->Operations();
  const auto reductions = std::find_if(operations.begin(), operations.end(), [](const OperationCount& operation) {
    return operation.op == OpKind::kAllReduce && operation.rank == 0;
  });
  ASSERT_NE(reductions, operations.end());
  EXPECT_EQ(reductions->count, 2 * 4 + 2 * 1);  // 101 doubles by 30, 61 of 120 that would fit
}

TEST(HostStaged, SixteenBitSumsRoundOnce) {
  EXPECT_EQ("", RunThreadRanks(3, [](ThreadRank& self) { CheckSixteenBitSums(*Stage(self, "dp0")); }));
}

// A long sequence of operations, enqueued without a wait, on groups and streams in turn.
struct Enqueued {
  at::Tensor got, want;
};

class Sequence {
 public:
  Sequence(Communicator& group, uint32_t seed) : group_(group), random_(seed) {}

  // The same operation on every rank, on whichever stream.
  void Next(CommStream stream) {
    const int size = group_.size(), rank = group_.rank();
    const auto n = static_cast<int64_t>(random_() % 50);
    const auto salt = static_cast<int64_t>(random_() % 1000);
    switch (random_() % 6) {
      case 0: {
        const at::Tensor all =
            Keep(Values(rank, n, at::kFloat, salt), Reduced(size, n, at::kFloat, ReduceOp::kSum, salt));
        return group_.AllReduce(all, ReduceOp::kSum, stream);
      }
      case 1: {
        const at::Tensor in = Values(rank, size * n, at::kFloat, salt);
        inputs_.push_back(in);
        const at::Tensor want = Reduced(size, size * n, at::kFloat, ReduceOp::kSum, salt).narrow(0, rank * n, n);
        return group_.ReduceScatter(in, Keep(at::zeros({n}), want), ReduceOp::kSum, stream);
      }
      case 2: {
        std::vector<at::Tensor> parts;
        for (int r = 0; r < size; ++r) parts.push_back(Values(r, n, at::kFloat, salt));
        inputs_.push_back(parts[static_cast<size_t>(rank)]);
        return group_.AllGather(inputs_.back(), Keep(at::zeros({size * n}), at::stack(parts).view({size * n})), stream);
      }
      case 3: {
        const int root = static_cast<int>(salt) % size;
        return group_.Broadcast(Keep(Values(rank, n, at::kFloat, salt), Values(root, n, at::kFloat, salt)), root,
                                stream);
      }
      case 4:
        return Exchange(n, salt, stream);
      default:  // what one operation leaves, the next one takes up on the same stream
        const at::Tensor all =
            Keep(Values(rank, n, at::kFloat, salt), Reduced(size, n, at::kFloat, ReduceOp::kSum, salt).mul(size));
        group_.AllReduce(all, ReduceOp::kSum, stream);
        group_.AllReduce(all, ReduceOp::kSum, stream);
    }
  }

  void Check() const {
    for (size_t i = 0; i < kept_.size(); ++i) {
      ASSERT_TRUE(kept_[i].got.equal(kept_[i].want)) << "result " << i << " of group " << group_.name();
    }
  }

 private:
  void Exchange(int64_t n, int64_t salt, CommStream stream) {
    const int size = group_.size(), rank = group_.rank(), next = (rank + 1) % size, previous = (rank + size - 1) % size;
    inputs_.push_back(Values(rank, n, at::kFloat, salt));
    const at::Tensor received = Keep(at::zeros({n}), Values(previous, n, at::kFloat, salt));
    group_.GroupStart();
    group_.Send(inputs_.back(), next, stream);
    group_.Recv(received, previous, stream);
    group_.GroupEnd();
  }
  at::Tensor Keep(const at::Tensor& got, const at::Tensor& want) {
    kept_.push_back({got, want});
    return got;
  }

  Communicator& group_;
  std::mt19937 random_;
  std::vector<Enqueued> kept_;
  std::vector<at::Tensor> inputs_;
};

TEST(HostStagedOrder, TwoGroupsOnTwoStreamsWithRandomDelays) {
  for (uint32_t seed = 1; seed <= 2; ++seed) {
    for (const int64_t staging_bytes : {int64_t{96}, kStagingBytes}) {
      EXPECT_EQ("", RunThreadRanks(3, [&](ThreadRank& self) {
                  const ThreadDeviceOptions options{.max_delay = std::chrono::microseconds(200),
                                                    .seed = seed * 10 + static_cast<uint32_t>(self.rank)};
                  std::array<ThreadStream, 2> streams;
                  const auto dp = Stage(self, "dp0", options, staging_bytes), tp = Stage(self, "tp0", options);
                  Sequence on_dp(*dp, seed), on_tp(*tp, seed + 100);
                  std::mt19937 order(seed + 200);  // of groups and streams: the same on every rank
                  for (int i = 0; i < 30; ++i) {
                    ThreadStream& stream = streams[order() % 2];
                    order() % 2 == 0 ? on_dp.Next(&stream) : on_tp.Next(&stream);
                  }
                  for (ThreadStream& stream : streams) stream.Drain();
                  on_dp.Check();
                  on_tp.Check();
                }));
    }
  }
}

TEST(HostStagedOrder, EachRankUsesStreamsAsItLikes) {
  EXPECT_EQ("", RunThreadRanks(3, [](ThreadRank& self) {
              const auto seed = static_cast<uint32_t>(self.rank);
              std::array<ThreadStream, 2> streams;
              const auto dp = Stage(self, "dp0", {.max_delay = std::chrono::microseconds(200), .seed = seed + 1});
              Sequence sequence(*dp, 5);
              std::mt19937 own(seed);
              for (int i = 0; i < 30; ++i) sequence.Next(&streams[own() % 2]);
              for (ThreadStream& stream : streams) stream.Drain();
              sequence.Check();
            }));
}

TEST(HostStagedOrder, WithoutWaitsOfStreamsTheCallWaits) {
  EXPECT_EQ("", RunThreadRanks(2, [](ThreadRank& self) {
              ThreadStream stream;
              const auto dp = Stage(self, "dp0", {.streams_wait = false, .max_delay = std::chrono::microseconds(200)});
              Sequence sequence(*dp, 6);
              for (int i = 0; i < 30; ++i) sequence.Next(&stream);
              stream.Drain();
              sequence.Check();
            }));
}

TEST(HostStagedOrder, WaitOnHostMakesCallsWaitUntilItIsTakenBack) {
  std::atomic<bool> came = false;
  EXPECT_EQ("", RunThreadRanks(2, [&](ThreadRank& self) {
              ThreadStream stream;
              const auto dp = Stage(self, "dp0"), gate = self.MakeCommunicator("gate");
              Sequence sequence(*dp, 7);
              WaitOnHost(*gate, true);  // another back end
              WaitOnHost(*dp, true);
              for (int i = 0; i < 10; ++i) sequence.Next(&stream);
              // Rank 1 comes late: until then rank 0's call does not return.
              const at::Tensor tensor = at::full({4}, self.rank + 1, at::kFloat);
              if (self.rank == 1) {
                std::this_thread::sleep_for(milliseconds(50));
                came = true;
              }
              dp->AllReduce(tensor, ReduceOp::kSum, &stream);
              EXPECT_TRUE(came);
              WaitOnHost(*dp, false);
              if (self.rank == 1) gate->Barrier();
              for (int i = 0; i < 10; ++i) sequence.Next(&stream);
              if (self.rank == 0) gate->Barrier();
              stream.Drain();
              sequence.Check();
            }));
}

TEST(HostStagedOrder, CallsReturnBeforeTheOtherRankHasCome) {
  EXPECT_EQ("", RunThreadRanks(2, [](ThreadRank& self) {
              ThreadStream stream;
              const auto dp = Stage(self, "dp0");
              const auto gate = self.MakeCommunicator("gate");
              const at::Tensor tensor = at::full({4}, self.rank + 1, at::kFloat);
              if (self.rank == 1) gate->Barrier();  // rank 0 has enqueued, and goes on
              dp->AllReduce(tensor, ReduceOp::kSum, &stream);
              if (self.rank == 0) {
                EXPECT_FALSE(stream.Idle());
                gate->Barrier();
              }
              stream.Drain();
              EXPECT_TRUE(tensor.equal(at::full({4}, 3, at::kFloat)));
            }));
}

TEST(HostStagedOrder, ABarrierWaitsForWhatWasEnqueued) {
  EXPECT_EQ("", RunThreadRanks(2, [](ThreadRank& self) {
              ThreadStream stream;
              const auto dp = Stage(self, "dp0", {.max_delay = std::chrono::microseconds(3000)});
              const at::Tensor tensor = at::full({4}, self.rank + 1, at::kFloat);
              dp->AllReduce(tensor, ReduceOp::kSum, &stream);
              dp->Barrier();
              EXPECT_TRUE(tensor.equal(at::full({4}, 3, at::kFloat)));
            }));
}

// One of each, by number.
constexpr int kNumOperations = 5;
struct Operands {  // outlive the streams
  at::Tensor in = at::zeros({8}), out = at::zeros({16});
};
void Enqueue(Communicator& group, const Operands& operands, int operation, CommStream stream) {
  const auto& [in, out] = operands;
  switch (operation) {
    case 0:
      return group.AllReduce(in, ReduceOp::kSum, stream);
    case 1:
      return group.ReduceScatter(out, in, ReduceOp::kSum, stream);
    case 2:
      return group.AllGather(in, out, stream);
    case 3:
      return group.Broadcast(in, 1, stream);
    default:
      return group.rank() == 0 ? group.Send(in, 1, stream) : group.Recv(in, 0, stream);
  }
}

TEST(HostStagedFaults, HNG_07_ARankThatFailsIsNamedWithItsOperationAndNoStreamHangs) {
  constexpr std::array<const char*, kNumOperations> kNames = {"all_reduce #", "reduce_scatter #", "all_gather #",
                                                              "broadcast #", "send #"};
  for (int operation = 0; operation < kNumOperations; ++operation) {
    const auto world = MakeInProcessWorld(2, milliseconds(20'000));
    world->Inject({.group = "dp0", .rank = 1, .nth = 1, .kind = Fault::Kind::kThrow});
    EXPECT_EQ("", RunThreadRanks(world, [&](ThreadRank& self) {
                const Operands operands;
                ThreadStream stream;
                const auto dp = Stage(self, "dp0");
                dp->Barrier();
                Enqueue(*dp, operands, operation, &stream);
                const std::string text = Found(*dp);
                EXPECT_TRUE(Contains(text, self.rank == 1 ? "COM015" : "COM013")) << text;
                if (self.rank == 0) {
                  EXPECT_TRUE(Contains(text, "rank 1 ended the job")) << text;
                  EXPECT_TRUE(Contains(text, kNames[static_cast<size_t>(operation)])) << text;
                }
                EXPECT_TRUE(Contains(text, "through host memory")) << text;
                stream.Drain();  // the flag is up for good
                EXPECT_NE(Caught([&] { Enqueue(*dp, operands, operation, &stream); }), "no error");
              }));
  }
}

TEST(HostStagedFaults, HNG_05_ATimeoutEndsTheGroup) {
  const auto world = MakeInProcessWorld(2, milliseconds(300));
  EXPECT_EQ("", RunThreadRanks(world, [&](ThreadRank& self) {
              const Operands operands;
              ThreadStream stream;
              const auto dp = Stage(self, "dp0");
              if (self.rank == 1) return;
              for (int i = 0; i < 3; ++i) Enqueue(*dp, operands, 0, &stream);  // far ahead
              const std::string text = Found(*dp);
              EXPECT_TRUE(Contains(text, "COM012") && Contains(text, "all_reduce #0 fp32[8]")) << text;
              stream.Drain();
            }));
}

TEST(HostStagedFaults, AbortFromAnotherThreadRaisesEveryFlag) {
  for (const bool sleeps : {false, true}) {  // before the worker waits for the peer, and while
    EXPECT_EQ("", RunThreadRanks(2, [&](ThreadRank& self) {
                const Operands operands, others;
                ThreadStream first, second;
                const auto dp = Stage(self, "dp0"), tp = Stage(self, "tp0");
                if (self.rank == 1) return;
                for (int i = 0; i < 4; ++i) {
                  Enqueue(*dp, operands, i, i % 2 == 0 ? &first : &second);
                  Enqueue(*tp, others, i, i % 2 == 0 ? &second : &first);
                }
                std::thread aborter([&] {
                  if (sleeps) std::this_thread::sleep_for(milliseconds(50));
                  dp->Abort();
                  tp->Abort();
                });
                first.Drain();
                second.Drain();
                aborter.join();
                const std::string text = Found(*dp);
                EXPECT_TRUE(Contains(text, "COM013")) << text;
                EXPECT_TRUE(Contains(text, "all_reduce #0 fp32[8]: begun")) << text;  // the flight record
                EXPECT_NE(Caught([&] { Enqueue(*dp, operands, 0, &first); }), "no error");
                EXPECT_NE(Caught([&] { dp->Barrier(); }), "no error");
              }));
  }
}

TEST(HostStagedFaults, AbortEndsACallThatWaits) {
  EXPECT_EQ("", RunThreadRanks(2, [&](ThreadRank& self) {
              const Operands operands;
              const auto dp = Stage(self, "dp0");
              if (self.rank == 1) return;
              std::thread aborter([&] {
                std::this_thread::sleep_for(milliseconds(50));
                dp->Abort();
              });
              const std::string text = Caught([&] { Enqueue(*dp, operands, 0, nullptr); });
              EXPECT_TRUE(Contains(text, "COM013")) << text;
              aborter.join();
            }));
}

TEST(HostStagedFaults, AnAbortWhileItsCopyDownIsHeldUp) {
  EXPECT_EQ("", RunThreadRanks(2, [&](ThreadRank& self) {
              const Operands operands;
              ThreadStream stream;
              std::mutex held;
              const auto dp = Stage(self, "dp0");
              if (self.rank == 1) return;
              held.lock();
              stream.Enqueue([&] { const std::lock_guard lock(held); });
              Enqueue(*dp, operands, 0, &stream);
              dp->Abort();
              EXPECT_TRUE(Contains(Found(*dp), "COM013"));
              held.unlock();
              stream.Drain();
            }));
}

#ifndef TRIREME_HAS_CUDA
TEST(HostStaged, WithoutCudaSaysSo) {
  try {
    MakeCudaStagingDevice(GpuSharers::kProcesses);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.id(), "COM017");
  }
}
#endif

}  // namespace
}  // namespace trireme::test
