// One micro-batch of one rank, where sequences have different lengths.
#pragma once
#include <cstdint>

namespace trireme {

struct MicroBatchShape {
  int64_t rows = 0;
  int64_t length = 0;        // of each row, padding included
  int64_t first_sample = 0;  // of row 0, counted in the global batch
  int64_t tokens() const { return rows * length; }
  bool operator==(const MicroBatchShape&) const = default;
};

}  // namespace trireme
