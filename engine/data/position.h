// Where a run stands in its data, for checkpoints: enough to go on with the next sample, and to notice that "next"
// would mean something else (other text, other order).
//   position.consumed_samples = consumed;  save(PositionToJson(position));
//   for (const std::string& difference : OrderDifferences(saved, now)) log::Warn(...);
// The position counts samples of all ranks, never steps, so another batch size or rank count goes on at the same
// sample.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/gpt_dataset.h"

namespace trireme::data {

struct DataPosition {
  std::string data_path;
  int64_t bin_bytes = 0, idx_bytes = 0;
  std::string idx_hash;                           // XXH3 of the index, 16 hex digits
  int64_t first_sequence = 0, last_sequence = 0;  // the training part, [first, last)
  int64_t seq_length = 0;
  int64_t seed = 0;
  std::string order;        // "megatron" or "file"; of dynamic batching "documents", and how they are ordered
  int64_t num_samples = 0;  // for which the order was made (GptDatasetOptions)
  int64_t num_epochs = 1;
  int64_t consumed_samples = 0;  // the next sample
  // A blend: its datasets, each with its share (0: by size); the fields above are then those of the first, but for
  // num_samples and consumed_samples, which count the blend's.
  double weight = 0;
  std::vector<DataPosition> parts;
  bool operator==(const DataPosition&) const;
};

inline bool DataPosition::operator==(const DataPosition&) const = default;

// What the files are; the other fields are left as they are.
DataPosition DescribeFiles(const IndexedDataset& data, SplitRange range);
DataPosition MakePosition(const GptDataset& train, SplitRange range, const GptDatasetOptions& options);

std::string PositionToJson(const DataPosition& position);
// Throws Error{kCheckpoint, DAT018}; `where` names the file it came from.
DataPosition PositionFromJson(std::string_view text, const std::string& where);

// One sentence for each reason why the samples from consumed_samples on would not be those that the saved run would
// have seen; empty: the same ones. The path may differ (a moved dataset), its content may not.
std::vector<std::string> OrderDifferences(const DataPosition& saved, const DataPosition& now);

}  // namespace trireme::data
