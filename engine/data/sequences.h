// Samples of different lengths: each document for itself, none continued by another.
//   DocumentSamples train(data, SplitOf(ParseSplit("969,30,1"), data->num_sequences())[0], 1024, vocab_size);
//   std::vector<int32_t> ids(train.Length(7) + 1);  train.Read(7, ids);   // inputs but for the last, labels but for
//   the first
// A document longer than `longest` is cut into pieces that overlap by one token, so that each of its tokens but the
// first is a label once. A document of less than two tokens has no label and is no sample. All members are const and
// safe to call from many threads.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/data/indexed_dataset.h"
#include "engine/data/split.h"

namespace trireme::data {

class SequenceSource {
 public:
  virtual ~SequenceSource() = default;
  virtual int64_t num_samples() const = 0;
  virtual int64_t Length(int64_t sample) const = 0;                     // labels; one token more is read
  virtual void Read(int64_t sample, std::span<int32_t> ids) const = 0;  // [Length + 1]
};

class DocumentSamples final : public SequenceSource {
 public:
  DocumentSamples(std::shared_ptr<const IndexedDataset> data, SplitRange range, int64_t longest, int64_t vocab_size);

  int64_t num_samples() const override { return static_cast<int64_t>(lengths_.size()); }
  int64_t Length(int64_t sample) const override { return lengths_[static_cast<size_t>(sample)]; }
  // Throws Error{kData, DAT006}: an id outside the vocabulary.
  void Read(int64_t sample, std::span<int32_t> ids) const override;

  const IndexedDataset& data() const { return *data_; }
  int64_t cut_documents() const { return cut_documents_; }

 private:
  std::shared_ptr<const IndexedDataset> data_;
  int64_t vocab_size_;
  std::vector<int64_t> first_tokens_;
  std::vector<int32_t> lengths_;
  int64_t cut_documents_ = 0;
};

}  // namespace trireme::data
