// Frequencies of rotary positions (arXiv:2104.09864) and of what stretches them over more positions, as Hugging Face
// transformers' ROPE_INIT_FUNCTIONS have them. Pure.
//   RopeFrequencies f = MakeRopeFrequencies(model, sequence_length);  angle = position * f.inverse[channel];
#pragma once
#include <cstdint>
#include <vector>

#include "engine/base/dtype.h"
#include "parsers/model_spec.h"

namespace trireme {

// Pair `channel` of a head (channels c and c + inverse.size()) turns by position * inverse[channel]; cosines and sines
// are multiplied by `factor`.
struct RopeFrequencies {
  std::vector<double> inverse;
  double factor = 1;
  bool operator==(const RopeFrequencies&) const = default;
};

// `sequence_length`: the tokens that are looked at together, from the first one. kDynamic stretches where they exceed
// max_position_embeddings, kLongRope takes its long factors where they exceed the original positions; the others do not
// look at it.
RopeFrequencies MakeRopeFrequencies(const RopeSpec& spec, int64_t head_size, int64_t max_position_embeddings,
                                    int64_t sequence_length);
RopeFrequencies MakeRopeFrequencies(const ModelSpec& model, int64_t sequence_length);

// Pairs of channels that turn in a head of head_size.
int64_t RotatedPairs(const RopeSpec& spec, int64_t head_size);

// The longest sequences: the model's positions, or those that its scaling stretches the original ones to.
int64_t MaxPositions(const ModelSpec& model);

// Cosines and sines of `positions` in the type of statistics, as the layers of a rank hold them once; 0 where the model
// has none.
int64_t RopeTableBytes(const ModelSpec& model, DType compute_dtype, int64_t positions);

}  // namespace trireme
