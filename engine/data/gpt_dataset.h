// Samples of seq_length + 1 tokens out of an indexed dataset, in Megatron-LM's order, exactly: the documents of each
// epoch are shuffled and concatenated, the stream is cut into samples that overlap by one token, and the samples are
// shuffled.
//   GptDataset train(data, SplitOf(ParseSplit("969,30,1"), data->num_sequences())[0], {.seq_length = 1024, .num_samples
//   = 8000}); train.Read(17, tokens);   // tokens[0..s-1] are the inputs, tokens[1..s] the labels
// Source: GPTDataset of Megatron-LM core 0.16 (document, sample and shuffle index; one NumPy generator for all three).
// With several epochs the order depends on num_samples, as there: the last epoch stands apart if less than 80 % of it
// is used. Order kFile: sample i is tokens [i * s, i * s + s] of the range in file order, one epoch, nothing shuffled.
// The index lives in memory (about 16 bytes a sample, 4 a document) and is built by several threads; there is no cache
// on disk. Read is const and safe to call from many threads. Throws Error{kData}: DAT008, DAT009; Error{kUsage}:
// DAT020.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/data/indexed_dataset.h"
#include "engine/data/split.h"

namespace trireme::data {

enum class SampleOrder { kMegatron, kFile };

struct GptDatasetOptions {
  int64_t seq_length = 0;
  int64_t num_samples = 0;  // wanted; 0: what one epoch gives
  int64_t seed = 1234;      // 0 .. 2^32 - 1, as NumPy takes
  SampleOrder order = SampleOrder::kMegatron;
  int threads = 0;  // 0: as many as the machine has
};

// How many epochs the wanted samples need, and how the last one is treated.
struct EpochPlan {
  int64_t tokens_per_epoch = 0;
  int64_t num_epochs = 1;
  int64_t num_samples = 0;  // whole samples in all epochs: at least those wanted
  bool separate_last_epoch = false;
  int64_t samples_before_last = 0;  // whole samples before the last epoch, if it is separate
};
EpochPlan PlanEpochs(int64_t tokens_per_epoch, int64_t seq_length, int64_t num_samples);

class GptDataset {
 public:
  GptDataset(std::shared_ptr<const IndexedDataset> data, SplitRange range, const GptDatasetOptions& options);

  int64_t num_samples() const { return plan_.num_samples; }  // at least as many as wanted
  int64_t seq_length() const { return seq_length_; }
  const EpochPlan& plan() const { return plan_; }
  const IndexedDataset& data() const { return *data_; }

  void Read(int64_t sample, std::span<int32_t> out) const;  // out: [seq_length + 1]
  int64_t TokenOf(int64_t sample, int64_t position) const;  // its place in the file, for messages

  // The three indices, for tests; empty in file order. Sample boundary j is token boundary_offsets()[j] of the document
  // document_index()[boundary_documents()[j]].
  std::span<const int32_t> document_index() const { return document_index_; }
  std::span<const int64_t> boundary_documents() const { return boundary_documents_; }
  std::span<const int32_t> boundary_offsets() const { return boundary_offsets_; }
  std::span<const uint32_t> shuffle_index() const { return shuffle_index_; }

 private:
  void BuildIndex(int64_t seed, int threads);
  void BuildSampleIndex(int threads);
  // Calls f(first token in the file, count) for each contiguous piece of a sample.
  template <typename F>
  void ForEachPiece(int64_t sample, F&& f) const;

  std::shared_ptr<const IndexedDataset> data_;
  SplitRange range_;
  int64_t seq_length_ = 0;
  SampleOrder order_ = SampleOrder::kMegatron;
  EpochPlan plan_;
  std::vector<int32_t> document_index_;
  std::vector<int64_t> boundary_documents_;  // [num_samples + 1], index into document_index_
  std::vector<int32_t> boundary_offsets_;    // [num_samples + 1], token in that document
  std::vector<uint32_t> shuffle_index_;      // [num_samples]
};

}  // namespace trireme::data
