// Offsets of the buffers of one Program in one arena, from their lives alone. Private to this room.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "engine/schedule/instruction.h"

namespace trireme {

// What an instruction knows to have ended: for each lane the id of its latest such instruction; -1: none.
using LaneClock = std::array<int32_t, kNumLanes>;

// A buffer from the instruction that writes it first to the one that frees it.
struct Life {
  BufferKey key;
  int64_t bytes = 0;
  int32_t begin = 0;  // instruction ids
  int32_t end = 0;
  Lane begin_lane = Lane::kCompute, end_lane = Lane::kCompute;
  LaneClock known{};  // by `begin`
};

struct Packing {
  std::vector<int64_t> offsets;  // parallel to the lives
  int64_t arena_bytes = 0;
  std::vector<size_t> at_peak;  // lives that must keep apart from one that begins, with it: where they are most bytes
};

// Two lives may share bytes only if the later one's beginning knows that the earlier one has ended. `lives` stand in
// the order of `begin`. A buffer has the same place in every micro-batch (in every n-th one where n of them are live
// together), so the arena does not depend on the number of micro-batches once all pairs of neighbours have met. Large
// buffers are placed first, each at the lowest offset that is free ("greedy by size" of arXiv:2001.03288).
Packing PackArena(const std::vector<Life>& lives, int64_t alignment);

}  // namespace trireme
