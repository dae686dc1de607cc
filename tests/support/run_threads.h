// Tests on several ranks that are threads of this process.
//   EXPECT_EQ("", RunThreadRanks(4, [](ThreadRank& self) {
//     auto dp = self.MakeCommunicator("dp0");
//     EXPECT_EQ(...);                              // reported with "rank 2"
//   }));
// "" means that no rank threw. Otherwise one line a failed rank, the one that failed first in front of those that it
// woke. A rank that throws aborts the world. One that hangs outside of communication ends the test program after
// `timeout_s`.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/in_process.h"

namespace trireme::test {

struct ThreadRank {
  int rank;
  int world;
  std::shared_ptr<InProcessWorld> comms;

  std::unique_ptr<Communicator> MakeCommunicator(const std::string& name);  // of all ranks
  // Makes groups that this rank is in (RankWorld::make_group).
  std::function<std::unique_ptr<Communicator>(const std::string&, const std::vector<int>&)> GroupMaker() const;
};

// Each thread runs with one LibTorch thread and with gradients as by default (on).
std::string RunThreadRanks(int world, const std::function<void(ThreadRank&)>& body, int timeout_s = 60);
// On a world of the caller's, with its faults, counts and time-out.
std::string RunThreadRanks(const std::shared_ptr<InProcessWorld>& comms, const std::function<void(ThreadRank&)>& body,
                           int timeout_s = 60);

}  // namespace trireme::test
