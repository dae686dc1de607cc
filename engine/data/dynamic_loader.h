// Documents of a dataset for training by tokens (dynamic_batches.h).
//   DynamicData data = OpenDynamicData(request, options);  DynamicStep step = data.train->At(consumed);
#pragma once
#include <memory>

#include "engine/data/dynamic_batches.h"
#include "engine/data/loader.h"
#include "engine/data/position.h"

namespace trireme::data {

struct DynamicData {
  std::shared_ptr<const DynamicBatches> train;
  std::shared_ptr<const DynamicBatches> validation;  // in file order, one pass; null where the part has no sample
  DataPosition position;                             // consumed_samples is 0
  int64_t cut_documents = 0;                         // of the training part, longer than the longest sample
};

// Of the request it takes data_path, split, no_shuffle (all of the file for training) and vocab_size; the options say
// the order. Throws Error{kData}: DAT021 (the tokeniser's vocabulary), DAT029, DAT030 (a blend).
DynamicData OpenDynamicData(const DataRequest& request, const DynamicBatchOptions& options);

}  // namespace trireme::data
