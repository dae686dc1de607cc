// Tests on several processes.
//   EXPECT_EQ("", RunRanks(/*world=*/3, /*timeout_s=*/60, [](RankContext& ctx) {
//     auto dp = ctx.MakeGloo("dp0");
//     EXPECT_EQ(...);
//   }));
// Forks before any thread exists: the calling test must not have started one, so it calls no LibTorch operation and no
// in-process ranks before. Each child has one LibTorch thread. Failed assertions, exceptions and signals of the
// children become text; an alarm ends a child that hangs. "" means that every rank passed.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "engine/comm/communicator.h"
#include "engine/comm/store.h"

namespace trireme::test {

struct RankContext {
  int rank = 0;
  int world = 1;
  RendezvousInfo rendezvous;  // on a free port that nobody else can take

  std::shared_ptr<Store> store();  // connected at the first call, in which all ranks take part; nullptr if world is 1
  std::unique_ptr<Communicator> MakeGloo(const std::string& name,
                                         std::chrono::milliseconds timeout = std::chrono::seconds(60));  // of all ranks

 private:
  std::shared_ptr<Store> store_;
};

std::string RunRanks(int world, int timeout_s, const std::function<void(RankContext&)>& body);

}  // namespace trireme::test
