// Micro-batches by tokens: short sequences in many rows, long ones in few. What a step trains on is a pure function of
// its position in the stream of samples, so that every rank knows the shapes of all micro-batches of all ranks before
// the step, and a run goes on at any step, on any number of ranks, with the same samples.
//   DynamicBatches batches(samples, {.plan = plan.batch, ...});  DynamicStep step = batches.At(consumed_samples);
//   batches.Fill(step, m * dp_size + dp_rank, tokens);
//
// The stream: the samples in the order asked for, epoch after epoch (kRandom: shuffled anew in each). A step takes the
// longest run of it that fits `packs` packs (as in DeepSpeed: a pack takes the place of one sample of
// train_batch_size); the run is sorted by padded length, longest first, and cut into packs of rows x padded length of
// the first row <= max_tokens. So packs that ranks work on at once are of like size, and no sample is left out or used
// twice. With min_rows above 1 the run ends earlier where its last pack would be smaller, and a pack may then be empty.
// Source: keys data_efficiency.data_sampling.dynamic_batching of DeepSpeed; what differs from it:
// docs/dynamic_batching.md.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/data/sequences.h"
#include "engine/plan/batch_shape.h"

namespace trireme::data {

enum class StreamOrder : uint8_t { kFile, kRandom, kLength };

struct DynamicBatchOptions {
  int64_t packs = 1;  // of a step: train_batch_size
  int64_t max_tokens = 0;
  int64_t min_rows = 1, max_rows = INT64_MAX;
  int64_t longest = 0;          // no sample is longer
  int64_t length_multiple = 1;  // lengths are rounded up to it, at most to `longest`
  StreamOrder order = StreamOrder::kFile;
  int64_t seed = 1234;
  bool repeats = true;  // epoch after epoch; false: the stream ends (evaluation)
};

// One step of all ranks. Pack p has rows samples[packs[p].first_sample ..], each padded to packs[p].length.
struct DynamicStep {
  std::vector<int64_t> samples;        // ids
  std::vector<MicroBatchShape> packs;  // `packs` of them; an empty one has a row without tokens, of the shortest length
  int64_t num_samples() const { return static_cast<int64_t>(samples.size()); }
};

class DynamicBatches {
 public:
  // Throws Error{kData, DAT029} if an epoch is smaller than one step (where it repeats), or holds no sample.
  DynamicBatches(std::shared_ptr<const SequenceSource> samples, const DynamicBatchOptions& options);

  const SequenceSource& samples() const { return *samples_; }
  int64_t num_samples() const { return samples_->num_samples(); }  // of an epoch
  const DynamicBatchOptions& options() const { return options_; }

  // The step that begins at a position of the stream; no samples past the end of one that does not repeat. Cost: about
  // that of sorting its samples. Safe to call from many threads.
  DynamicStep At(int64_t position) const;
  // ids: [rows, length + 1] of pack `pack`: each row a sample, then -1, which is no token and no label. Safe to call
  // from many threads.
  void Fill(const DynamicStep& step, int64_t pack, std::span<int32_t> ids) const;

 private:
  // Of samples by padded length, in steps of the multiple.
  using Histogram = std::vector<int64_t>;

  int64_t PaddedLength(int64_t length) const;
  size_t ClassOf(int64_t sample) const;
  int64_t LengthOfClass(size_t length_class) const;
  int64_t Capacity(size_t length_class) const;
  std::vector<MicroBatchShape> Pack(const Histogram& histogram) const;
  std::vector<MicroBatchShape> LongestRun(const std::vector<int64_t>& stream) const;
  std::vector<int64_t> Stream(int64_t position, int64_t count) const;
  std::shared_ptr<const std::vector<int32_t>> EpochOrder(int64_t epoch) const;

  std::shared_ptr<const SequenceSource> samples_;
  DynamicBatchOptions options_;
  mutable std::mutex mutex_;  // of the orders, which are made when a step first needs them
  mutable int64_t epochs_[2] = {-1, -1};
  mutable std::shared_ptr<const std::vector<int32_t>> orders_[2];
};

}  // namespace trireme::data
