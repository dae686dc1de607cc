// Text from a checkpoint: one rank, whole weights, the whole context anew for each token.
//   Generator generator(reader, device);  int32_t next = generator.Next(ids, sampling);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "checkpoint/reader.h"
#include "engine/model/unit.h"
#include "engine/zero/rank_state.h"

namespace trireme {

struct Sampling {
  double temperature = 1;  // 0: the most likely token
  int64_t top_k = 0;       // 0: all
  uint64_t seed = 1234;
};

class Generator {
 public:
  // Weights and model description of a native checkpoint. `context`: tokens looked at, at most the model's positions
  // (0: all).
  Generator(const checkpoint::CheckpointReader& reader, at::Device device, int64_t context);
  ~Generator();

  const ModelSpec& model() const { return plan_.model; }
  int64_t context() const { return plan_.batch.sequence_length; }

  // Logits (fp32, one a token of the vocabulary) of what follows the last `context` of `ids` (at least one).
  std::vector<float> Logits(std::span<const int32_t> ids);

 private:
  Plan plan_;
  std::unique_ptr<RankState> state_;
  std::vector<std::unique_ptr<Unit>> units_;
  at::Tensor tokens_, boundary_, next_boundary_, workspace_, logits_;
  Saved saved_;
};

// Draws a token. Ties and sums go by token id, so a seed gives the same text on any device with the same logits.
int32_t Sample(std::span<const float> logits, const Sampling& sampling, std::mt19937_64& random);

}  // namespace trireme
