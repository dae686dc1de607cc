#include "engine/plan/unit_spec.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace trireme {

std::vector<int64_t> ParameterSpec::HeldShape() const {
  std::vector<int64_t> held = shape;
  if (transposed) std::reverse(held.begin(), held.end());
  if (padded_rows > 0) held[0] = padded_rows;
  return held;
}

int64_t ParameterSpec::HeldElements() const {
  const std::vector<int64_t> held = HeldShape();
  return std::accumulate(held.begin(), held.end(), int64_t{1}, std::multiplies<>());
}

int64_t HeadChunkTokens(int64_t tokens, int64_t padded_vocab_size) {
  const int64_t rows = kHeadChunkElements / padded_vocab_size / 128 * 128;
  return std::min(tokens, std::max<int64_t>(rows, 128));
}

}  // namespace trireme
