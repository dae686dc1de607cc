// FlightRecorder: the last operations of one communicator, for the text of an error. Safe to read from any thread.
#pragma once
#include <c10/core/ScalarType.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "engine/comm/communicator.h"

namespace trireme {

// "fp32" for c10::ScalarType::Float; LibTorch's own name for a type that configs do not know.
std::string TypeName(c10::ScalarType type);

struct FlightEntry {
  int64_t id = 0;
  int64_t number = 0;
  OpKind op = OpKind::kBarrier;
  std::optional<c10::ScalarType> dtype = std::nullopt;  // unset for a barrier
  int64_t count = 0;
  int peer = -1;  // root or other end, as a rank of the group; -1 if none
  std::chrono::steady_clock::time_point begin = {}, end = {};
  bool ended = false;
};

// "all_reduce #12 fp32[1024]", "send #3 bf16[8] with rank 1 of the group"
std::string Describe(const FlightEntry& entry);

class FlightRecorder {
 public:
  int64_t Begin(FlightEntry entry);  // sets id and begin; returns the id
  void End(int64_t id);
  std::string Text() const;  // one line an operation, newest first, with seconds before now; "" if there was none

 private:
  static constexpr int64_t kCapacity = 16;
  mutable std::mutex mutex_;
  std::array<FlightEntry, kCapacity> ring_;
  int64_t next_ = 0;
};

}  // namespace trireme
