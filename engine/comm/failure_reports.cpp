#include "engine/comm/failure_reports.h"

#include <fmt/ranges.h>

#include <chrono>
#include <thread>
#include <utility>

#include "engine/base/error.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWait{1500};

}  // namespace

FailureReports::FailureReports(std::shared_ptr<Store> store, std::string prefix, int my_rank, std::vector<int> ranks)
    : store_(std::move(store)), prefix_(std::move(prefix)), my_rank_(my_rank), ranks_(std::move(ranks)) {}

std::string FailureReports::Exchange(const std::string& doing, const std::string& reason,
                                     const std::function<void()>& close) {
  try {
    store_->Set(prefix_ + "stopped/" + std::to_string(my_rank_), doing);
    if (store_->Add(prefix_ + "failures", 1) == 1) {
      store_->Set(prefix_ + "first", fmt::format("rank {}: {}", my_rank_, reason));
    }
    close();
    return Collect();
  } catch (const Error&) {
    close();
    return "; the store on rank 0 does not answer: rank 0 has most likely ended";
  }
}

std::string FailureReports::Collect() {
  const auto deadline = std::chrono::steady_clock::now() + kWait;
  std::string facts;
  std::vector<int> silent;
  for (const int other : ranks_) {
    if (other == my_rank_) continue;
    const std::string key = prefix_ + "stopped/" + std::to_string(other);
    bool told = false;
    while (!(told = store_->Has(key)) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    if (told) {
      facts += fmt::format("; rank {} was in {}", other, store_->Get(key, milliseconds(100)));
    } else {
      silent.push_back(other);
    }
  }
  if (!silent.empty()) {
    facts += fmt::format("; missing, in no operation of the group or ended: rank {}", fmt::join(silent, ", "));
  }
  if (const auto first = First()) facts += "; failed first: " + *first;
  return facts;
}

std::optional<std::string> FailureReports::First() {
  try {
    if (!store_->Has(prefix_ + "first")) return std::nullopt;
    return store_->Get(prefix_ + "first", milliseconds(100));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace trireme
