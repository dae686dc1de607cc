// The add-one bigram model: the yardstick beside a trained model's held-out loss.
//   BigramResult r = HeldOutBigram(data, train_range, validation_range, /*vocab_size=*/257, /*seq_length=*/256);
// p(b | a) = (count(a, b) + 1) / (count(a) + vocab_size), counted over neighbouring tokens of the training part in file
// order, document boundaries included, as samples cross them too. The loss is -ln p, averaged over the labels of the
// held-out part's samples in file order: tokens 1 .. n * seq_length of it, n being the whole samples. These are exactly
// the positions that a full pass over TrainingData::validation predicts. seq_length 0: all tokens but the first.
#pragma once
#include <cstdint>

#include "engine/data/indexed_dataset.h"
#include "engine/data/split.h"

namespace trireme::data {

struct BigramResult {
  double loss = 0;  // nats per token
  int64_t train_tokens = 0;
  int64_t predicted_tokens = 0;
};

// Throws Error{kData}: DAT006 (an id outside vocab_size), DAT008 (a part without a pair of tokens or a whole sample).
BigramResult HeldOutBigram(const IndexedDataset& data, SplitRange train, SplitRange held_out, int64_t vocab_size,
                           int64_t seq_length);

}  // namespace trireme::data
