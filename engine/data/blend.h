// Several datasets as one, in the order of Megatron-LM's BlendedDataset.
//   const Blend blend = ParseBlend({"0.3", "corpus/a", "0.7", "corpus/b"});
//   BlendOrder order = OrderByWeights(blend.weights, /*size=*/1000);   // sample i is samples[i] of dataset datasets[i]
// The next sample comes from the dataset that is furthest behind its share. So the order's beginning does not depend on
// its length, and a dataset's samples come in their own order. Source: Megatron-LM core 0.16, the two builders of
// blending indices, the normalisation of weights and the sizes wanted of each dataset, in double precision as there.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::data {

struct Blend {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // sum 1; empty: each dataset once, in proportion to its samples
};

// The words of --data-path: "W A W B ..." or "A B ...". Throws Error{kUsage, DAT027}.
Blend ParseBlend(const std::vector<std::string>& words);

// Divided by their sum, which is added up as NumPy adds.
std::vector<double> NormalizeWeights(const std::vector<double>& weights);

// How many samples of a dataset a blend of `size` is made for: wanted of each dataset (their sum is the length of the
// blend), and ordered of it, 0.5 % more.
int64_t WantedOf(double weight, int64_t size);
int64_t OrderedOf(double weight, int64_t size);

struct BlendOrder {
  std::vector<int16_t> datasets;
  std::vector<int64_t> samples;
};
BlendOrder OrderByWeights(const std::vector<double>& weights, int64_t size);
BlendOrder OrderOfAll(const std::vector<int64_t>& sizes);  // every sample of every dataset, once

}  // namespace trireme::data
