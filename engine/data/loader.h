// Batches of tokens for the trainer, every id checked against the model's vocabulary before it can reach a device.
//   TrainingData data = OpenTrainingData({.data_path = "corpus/text", .seq_length = 1024, .vocab_size = 50257,
//   .train_samples = 8000}); data.train->Fill(FirstSample(consumed, m, dp_rank, dp_size, micro), micro, tokens);
// Every token counts in the loss. Throws Error{kData}: docs/errors/data.md.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/data/gpt_dataset.h"
#include "engine/data/position.h"

namespace trireme::data {

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual int64_t num_samples() const = 0;
  virtual int64_t seq_length() const = 0;
  // tokens: [count, seq_length + 1], row-major; row i is sample first_sample + i; inputs are its first seq_length
  // tokens, labels its last. Safe to call from many threads.
  virtual void Fill(int64_t first_sample, int64_t count, std::span<int32_t> tokens) const = 0;
};

// Throws Error{kData, DAT006} from Fill on an id outside [0, vocab_size), naming file, document, position, id and
// vocabulary; ids in the padded part of a vocabulary are outside. DAT009 past the last sample.
std::unique_ptr<BatchSource> MakeBatchSource(std::shared_ptr<const GptDataset> samples, int64_t vocab_size);

struct DataRequest {
  std::filesystem::path data_path = {};  // prefix of .bin and .idx
  // The words of --data-path where they are more than one prefix (engine/data/blend.h); data_path is not read then.
  // Each dataset is divided by `split`. Training follows the weights; without weights every sample is there once, and
  // more than there are is an error. Validation and test are full passes that alternate by the sizes of the parts.
  std::vector<std::string> blend = {};
  std::string split = "969,30,1";
  int64_t seq_length = 0;
  int64_t vocab_size = 0;     // of the model, before padding
  int64_t train_samples = 0;  // of the whole run, those before a resume included
  int64_t seed = 1234;
  bool no_shuffle = false;  // samples in file order, the whole file for training
  // num_samples of a saved position, 0 if none: with several epochs it decides the order, which is kept as long as it
  // gives enough samples for this run.
  int64_t saved_num_samples = 0;
};

// One dataset, open and divided: training, validation, test.
struct DatasetPart {
  std::shared_ptr<const IndexedDataset> tokens;
  std::array<SplitRange, 3> ranges{};
  int64_t TokensIn(size_t i) const { return tokens->FirstToken(ranges[i].end) - tokens->FirstToken(ranges[i].begin); }
};
// Of the request: split, no_shuffle (all of it for training) and vocab_size. Throws as OpenTrainingData.
DatasetPart OpenPart(const DataRequest& request, const std::filesystem::path& prefix);

struct TrainingData {
  std::shared_ptr<const IndexedDataset> tokens;  // of a blend the first
  std::unique_ptr<BatchSource> train;
  // In file order, one epoch, for full passes; nullptr where the part holds less than one sample, and with no_shuffle.
  std::unique_ptr<BatchSource> validation, test;
  DataPosition position;  // consumed_samples is 0
};

// Also compares PREFIX.tokenizer.json, if there is one, with vocab_size: DAT021. Of a blend: DAT027 (made by different
// tokenisers), DAT028 (too few samples).
TrainingData OpenTrainingData(const DataRequest& request);

}  // namespace trireme::data
