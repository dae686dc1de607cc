// What the ranks of a group tell each other over the store once an operation has failed, so that every rank's message
// can name the culprit: where each rank was, who reported nothing, and who failed first.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/store.h"

namespace trireme {

class FailureReports {
 public:
  // Keys begin with `prefix`; ranks are those of the world.
  FailureReports(std::shared_ptr<Store> store, std::string prefix, int my_rank, std::vector<int> ranks);

  // Reports that this rank was in `doing` and why it failed, calls `close`, which makes the others notice, and waits a
  // moment for their reports. Returns "; rank 1 was in ...; missing, ...: rank 2; failed first: rank 0: ...". Does not
  // throw.
  std::string Exchange(const std::string& doing, const std::string& reason, const std::function<void()>& close);
  std::optional<std::string> First();  // "rank 0: ...", if any rank has failed. Does not throw.

 private:
  std::string Collect();

  std::shared_ptr<Store> store_;
  std::string prefix_;
  int my_rank_;
  std::vector<int> ranks_;
};

}  // namespace trireme
