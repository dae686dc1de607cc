#include "engine/plan/unit_spec.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace trireme {

std::vector<int64_t> ParameterSpec::WholeHeldShape() const {
  std::vector<int64_t> held = shape;
  if (transposed) std::reverse(held.begin(), held.end());
  if (padded_rows > 0) held[0] = padded_rows;
  return held;
}

std::vector<int64_t> ParameterSpec::HeldShape() const {
  std::vector<int64_t> held = WholeHeldShape();
  if (split()) held[static_cast<size_t>(tp_dim)] /= tp_size;
  return held;
}

std::vector<ParameterSpec::Range> ParameterSpec::HeldRanges(int tp_rank) const {
  const size_t dim = split() ? static_cast<size_t>(tp_dim) : 0;
  const int64_t logical = transposed ? shape[shape.size() - 1 - dim] : shape[dim];
  if (!split()) return {{0, logical}};
  const int64_t block = WholeHeldShape()[dim] / tp_blocks, part = block / tp_size;
  std::vector<Range> ranges;
  for (int64_t b = 0; b < tp_blocks; ++b) {
    const int64_t begin = b * block + tp_rank * part;
    ranges.push_back({begin, std::clamp<int64_t>(logical - begin, 0, part)});
  }
  return ranges;
}

std::vector<HeldRun> HeldRuns(const ParameterSpec& parameter, int tp_rank) {
  const std::vector<int64_t> whole = parameter.WholeHeldShape(), held = parameter.HeldShape();
  const int64_t columns = whole.size() > 1 ? whole[1] : 1, held_columns = held.size() > 1 ? held[1] : 1;
  std::vector<HeldRun> runs;
  int64_t at = 0;  // index along the split dimension of the held tensor
  for (const ParameterSpec::Range& range : parameter.HeldRanges(tp_rank)) {
    if (parameter.tp_dim == 1 && parameter.split()) {  // a part of each row
      for (int64_t row = 0; row < whole[0]; ++row) {
        runs.push_back({row * held_columns + at, range.extent, row * columns + range.begin});
      }
    } else if (range.extent > 0) {
      runs.push_back({at * columns, range.extent * columns, range.begin * columns});
    }
    at += range.extent;
  }
  return runs;
}

int64_t ParameterSpec::HeldElements() const {
  const std::vector<int64_t> held = HeldShape();
  return std::accumulate(held.begin(), held.end(), int64_t{1}, std::multiplies<>());
}

void DropCheap(UnitSpec& unit, DType compute_dtype) {
  int64_t widest = 0;  // bytes a token
  for (SavedSpec& saved : unit.saved) {
    if (saved.remade_from.empty()) continue;
    const int64_t bytes = saved.elements_per_token * SizeOf(compute_dtype);
    widest = std::max(widest, (bytes + saved.token_share - 1) / saved.token_share);
    if (saved.remade_with_weights && unit.splits_weights) unit.deferred.push_back(saved);
    saved.place = SavedSpec::Place::kRemade;
  }
  unit.forward_workspace.bytes_per_token += widest;
  unit.backward_workspace.bytes_per_token += widest;
}

int64_t HeadChunkTokens(int64_t tokens, int64_t padded_vocab_size) {
  const int64_t rows = kHeadChunkElements / padded_vocab_size / 128 * 128;
  return std::min(tokens, std::max<int64_t>(rows, 128));
}

}  // namespace trireme
