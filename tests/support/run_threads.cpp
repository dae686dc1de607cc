#include "tests/support/run_threads.h"

#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <thread>

#include "engine/base/error.h"

namespace trireme::test {
namespace {

struct Outcome {
  bool done = false;
  std::string failure;  // "" if the body returned
  bool woken = false;   // by another rank's failure
};

void RunOne(ThreadRank self, const std::function<void(ThreadRank&)>& body, Outcome& outcome) {
  at::set_num_threads(1);
  const ::testing::ScopedTrace trace(__FILE__, __LINE__, fmt::format("rank {}", self.rank));
  try {
    body(self);
  } catch (const Error& error) {
    outcome.failure = error.what();
    outcome.woken = error.id() == "COM013";
  } catch (const std::exception& error) {
    outcome.failure = error.what();
  } catch (...) {
    outcome.failure = "threw something that is no std::exception";
  }
  if (!outcome.failure.empty()) self.comms->Abort(self.rank, outcome.failure);
}

std::string Report(const std::vector<Outcome>& outcomes) {
  std::string text;
  for (const bool woken : {false, true}) {
    for (size_t r = 0; r < outcomes.size(); ++r) {
      if (outcomes[r].failure.empty() || outcomes[r].woken != woken) continue;
      text += fmt::format("rank {}: {}\n", r, outcomes[r].failure);
    }
  }
  return text;
}

}  // namespace

std::function<std::unique_ptr<Communicator>(const std::string&, const std::vector<int>&)> ThreadRank::GroupMaker()
    const {
  return [comms = comms, rank = rank](const std::string& name, const std::vector<int>& ranks) {
    return comms->MakeCommunicator(ranks, rank, name);
  };
}

std::unique_ptr<Communicator> ThreadRank::MakeCommunicator(const std::string& name) {
  std::vector<int> all(world);
  std::iota(all.begin(), all.end(), 0);
  return comms->MakeCommunicator(all, rank, name);
}

std::string RunThreadRanks(const std::shared_ptr<InProcessWorld>& comms, const std::function<void(ThreadRank&)>& body,
                           int timeout_s) {
  const int world = comms->size();
  std::vector<Outcome> outcomes(world);
  std::mutex mutex;
  std::condition_variable finished;
  int num_done = 0;
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      RunOne({r, world, comms}, body, outcomes[r]);
      const std::lock_guard lock(mutex);
      outcomes[r].done = true;
      ++num_done;
      finished.notify_all();
    });
  }
  {
    std::unique_lock lock(mutex);
    const auto all_done = [&] { return num_done == world; };
    if (!finished.wait_for(lock, std::chrono::seconds(timeout_s), all_done)) {
      lock.unlock();
      comms->Abort(0, fmt::format("the watchdog of the test, after {} s", timeout_s));
      lock.lock();
      if (!finished.wait_for(lock, std::chrono::seconds(5), all_done)) {
        for (int r = 0; r < world; ++r) {
          if (!outcomes[r].done) std::fprintf(stderr, "rank %d hangs outside of communication\n", r);
        }
        std::abort();  // a thread cannot be ended from outside
      }
    }
  }
  for (std::thread& thread : threads) thread.join();
  return Report(outcomes);
}

std::string RunThreadRanks(int world, const std::function<void(ThreadRank&)>& body, int timeout_s) {
  return RunThreadRanks(MakeInProcessWorld(world, std::chrono::seconds(timeout_s)), body, timeout_s + 5);
}

}  // namespace trireme::test
