// Losses of a model over samples, without a trainer: every token's, summed.
//   InferenceModel model(folder, {.sequence_length = 1024, .micro_batch_size = 4});
//   LossSums sums = SumLosses(model, *source, {.count = source->num_samples()});   sums.loss() nats per token
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/data/loader.h"
#include "engine/data/tokenizer.h"
#include "engine/trainer/inference_model.h"

namespace trireme {

struct LossSums {
  double nats = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;  // of the text that the predicted tokens are
  double loss() const { return tokens > 0 ? nats / static_cast<double>(tokens) : 0; }
  double perplexity() const;
  double bits_per_byte() const;  // nats / ln 2 / bytes; 0 without bytes
};

// Bytes of each id's text. The end of a document has none: it is no part of the text.
class TokenBytes {
 public:
  explicit TokenBytes(const data::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  int64_t Of(int32_t id);

 private:
  const data::Tokenizer& tokenizer_;
  std::vector<int32_t> known_;  // by id; -1: not asked for yet
};

struct SampleShare {
  int64_t count = 0;        // the first samples of the source
  int rank = 0, world = 1;  // this rank takes every world-th micro-batch
  TokenBytes* bytes = nullptr;
  std::function<void(int64_t done, int64_t all)> progress = {};  // micro-batches of this rank
};

// Samples of model.plan()'s sequence length, a micro-batch of the plan at a time; a label of -1 is no token.
LossSums SumLosses(InferenceModel& model, const data::BatchSource& source, const SampleShare& share);

// All of `ids` in samples that overlap by one token; what lacks in the last one is filled with -1. So every id but the
// first is predicted once.
std::unique_ptr<data::BatchSource> SamplesOf(std::vector<int32_t> ids, int64_t seq_length);

}  // namespace trireme
