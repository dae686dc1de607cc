// Offsets of buffers in one arena that several lanes allocate from, found in program order. Private to this room.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "engine/schedule/instruction.h"

namespace trireme {

// What one instruction knows to have ended: for each lane the id of its latest such instruction; -1: none.
using LaneClock = std::array<int32_t, kNumLanes>;

class Arena {
 public:
  explicit Arena(int64_t alignment) : alignment_(alignment) {}

  // Best fit among the gaps left by live ranges and by freed ones whose freeing instruction `joined` does not cover.
  int64_t Allocate(int64_t bytes, const LaneClock& joined);
  // The range that Allocate returned ends with instruction `id` of `lane`.
  void Free(int64_t offset, int64_t bytes, Lane lane, int32_t id);
  // Forgets freed ranges that every one of `clocks` (the lanes that allocate) has joined.
  void Prune(const std::vector<LaneClock>& clocks);

  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  static constexpr int32_t kLive = -1;
  struct Range {
    int64_t begin, end;
    int32_t freed_by = kLive;
    Lane lane = Lane::kCompute;
    bool JoinedBy(const LaneClock& clock) const {
      return freed_by != kLive && clock[static_cast<size_t>(lane)] >= freed_by;
    }
  };

  int64_t alignment_;
  std::vector<Range> ranges_;  // by begin; a freed range may lie under a live one of a lane that joined it
  int64_t peak_bytes_ = 0;
};

}  // namespace trireme
