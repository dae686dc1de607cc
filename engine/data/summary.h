// What a dataset holds, counted over all its tokens by several threads.
#pragma once
#include <cstdint>

#include "engine/data/indexed_dataset.h"

namespace trireme::data {

struct DatasetSummary {
  int64_t documents = 0, empty_documents = 0, sequences = 0, tokens = 0;
  int64_t longest_document = 0;  // tokens
  int64_t smallest_id = 0;       // 0 and -1 in a dataset without tokens
  int64_t largest_id = -1;
  int64_t largest_id_token = -1;  // its first place in the file
};

DatasetSummary Summarize(const IndexedDataset& data);

// Every id against [0, vocab_size). Throws Error{kData, DAT006} for the first that is outside.
void CheckIds(const IndexedDataset& data, int64_t vocab_size);

}  // namespace trireme::data
