// Which part of a dataset is for training, validation and test.
//   SplitRange validation = SplitOf(ParseSplit("969,30,1"), data.num_sequences())[1];
// Megatron-LM's arithmetic: weights are normalised and summed in double; part i is sequences [round(lo * n), round(hi *
// n)), halves to even; contiguous, in file order, without shuffling before.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace trireme::data {

struct SplitRange {
  int64_t begin = 0, end = 0;  // sequences
  int64_t size() const { return end - begin; }
  bool operator==(const SplitRange&) const = default;
};

using SplitWeights = std::array<double, 3>;  // train, validation, test; sum 1

// One to three numbers >= 0 separated by commas (or slashes, as Megatron-LM allows), missing ones being 0.
// Throws Error{kUsage, DAT007}.
SplitWeights ParseSplit(std::string_view text);
std::array<SplitRange, 3> SplitOf(const SplitWeights& weights, int64_t num_sequences);

}  // namespace trireme::data
