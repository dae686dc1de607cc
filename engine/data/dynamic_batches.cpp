#include "engine/data/dynamic_batches.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "engine/base/error.h"
#include "engine/data/numpy_random.h"

namespace trireme::data {
namespace {

// splitmix64: neighbouring seeds and epochs give orders that have nothing to do with each other.
uint32_t SeedOf(int64_t seed, int64_t epoch) {
  uint64_t z = static_cast<uint64_t>(seed) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(epoch);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>(z ^ (z >> 31));
}

}  // namespace

DynamicBatches::DynamicBatches(std::shared_ptr<const SequenceSource> samples, const DynamicBatchOptions& options)
    : samples_(std::move(samples)), options_(options) {
  TRIREME_CHECK(options_.packs > 0 && options_.longest > 0 && options_.length_multiple > 0 && options_.min_rows > 0 &&
                    options_.max_rows >= options_.min_rows &&
                    options_.longest * options_.min_rows <= options_.max_tokens,
                "max_tokens hold min_rows of the longest sample");
  Histogram histogram(ClassOf(-1) + 1, 0);
  for (int64_t sample = 0; sample < num_samples(); ++sample) {
    TRIREME_CHECK(samples_->Length(sample) > 0 && samples_->Length(sample) <= options_.longest, "length of a sample");
    ++histogram[ClassOf(sample)];
  }
  const auto packs = static_cast<int64_t>(Pack(histogram).size());
  if (packs == 0 || (options_.repeats && packs < options_.packs)) {
    throw Error(ErrorCode::kData, "DAT029",
                fmt::format("{} samples make {} micro-batches of {} tokens, and one step takes {}", num_samples(),
                            packs, options_.max_tokens, options_.packs),
                "data_efficiency.data_sampling.dynamic_batching",
                "lower max_tokens or train_batch_size, or use more text");
  }
}

int64_t DynamicBatches::LengthOfClass(size_t length_class) const {
  return std::min(static_cast<int64_t>(length_class) * options_.length_multiple, options_.longest);
}

// -1: the longest there is.
size_t DynamicBatches::ClassOf(int64_t sample) const {
  const int64_t length = sample < 0 ? options_.longest : samples_->Length(sample);
  return static_cast<size_t>((length + options_.length_multiple - 1) / options_.length_multiple);
}

int64_t DynamicBatches::Capacity(size_t length_class) const {
  return std::min(options_.max_rows, options_.max_tokens / LengthOfClass(length_class));
}

// Longest first, each pack as full as its first row allows: no cut of the sorted samples needs fewer packs.
std::vector<MicroBatchShape> DynamicBatches::Pack(const Histogram& histogram) const {
  std::vector<MicroBatchShape> packs;
  int64_t room = 0, samples = 0;
  for (size_t length_class = histogram.size(); length_class-- > 0;) {
    for (int64_t left = histogram[length_class]; left > 0;) {
      if (room == 0) {
        packs.push_back({0, LengthOfClass(length_class), samples});
        room = Capacity(length_class);
      }
      const int64_t taken = std::min(left, room);
      packs.back().rows += taken;
      left -= taken;
      room -= taken;
      samples += taken;
    }
  }
  return packs;
}

// How many of the stream's samples the step takes, as its packs. One sample more never needs fewer packs, so that the
// number can be searched for.
std::vector<MicroBatchShape> DynamicBatches::LongestRun(const std::vector<int64_t>& stream) const {
  const auto packs_of = [&](size_t count) {
    Histogram histogram(ClassOf(-1) + 1, 0);
    for (size_t i = 0; i < count; ++i) ++histogram[ClassOf(stream[i])];
    return Pack(histogram);
  };
  const auto fits = [&](size_t count) { return static_cast<int64_t>(packs_of(count).size()) <= options_.packs; };
  size_t most = stream.size();
  if (!fits(most)) {
    size_t least = 0;  // fits
    while (most - least > 1) {
      const size_t middle = least + (most - least) / 2;
      (fits(middle) ? least : most) = middle;
    }
    most = least;
  }
  std::vector<MicroBatchShape> packs = packs_of(most);
  while (options_.repeats && packs.back().rows < options_.min_rows) packs = packs_of(--most);
  return packs;
}

std::shared_ptr<const std::vector<int32_t>> DynamicBatches::EpochOrder(int64_t epoch) const {
  if (options_.order != StreamOrder::kRandom) epoch = 0;  // the same in all
  const std::lock_guard lock(mutex_);
  const size_t slot = static_cast<size_t>(epoch % 2);
  if (epochs_[slot] == epoch) return orders_[slot];
  auto order = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(num_samples()));
  std::iota(order->begin(), order->end(), 0);
  if (options_.order == StreamOrder::kRandom) {
    NumpyRandom(SeedOf(options_.seed, epoch)).Shuffle(std::span(*order));
  } else if (options_.order == StreamOrder::kLength) {
    std::ranges::stable_sort(*order, {}, [&](int32_t sample) { return samples_->Length(sample); });
  }
  epochs_[slot] = epoch;
  return orders_[slot] = std::move(order);
}

std::vector<int64_t> DynamicBatches::Stream(int64_t position, int64_t count) const {
  std::vector<int64_t> samples;
  samples.reserve(static_cast<size_t>(count));
  const int64_t end = options_.repeats ? position + count : std::min(position + count, num_samples());
  while (position < end) {
    const int64_t epoch = position / num_samples(), first = position % num_samples();
    const auto order = EpochOrder(epoch);
    const int64_t here = std::min(num_samples() - first, end - position);
    samples.insert(samples.end(), order->begin() + first, order->begin() + first + here);
    position += here;
  }
  return samples;
}

DynamicStep DynamicBatches::At(int64_t position) const {
  DynamicStep step;
  std::vector<int64_t> stream;
  // Enough of the stream that more of it would not fit.
  for (int64_t count = 2 * options_.packs * options_.max_tokens / options_.longest + 1;; count *= 2) {
    stream = Stream(position, count);
    if (stream.empty()) break;
    step.packs = LongestRun(stream);
    const MicroBatchShape& last = step.packs.back();
    const bool all = last.first_sample + last.rows == static_cast<int64_t>(stream.size());
    if (!all || static_cast<int64_t>(stream.size()) < count) break;
  }
  if (!stream.empty()) {
    stream.resize(static_cast<size_t>(step.packs.back().first_sample + step.packs.back().rows));
    std::ranges::stable_sort(stream, std::greater<>(), [&](int64_t sample) { return ClassOf(sample); });
    step.samples = std::move(stream);
  }
  step.packs.resize(static_cast<size_t>(options_.packs), {1, LengthOfClass(1), step.num_samples()});
  return step;
}

void DynamicBatches::Fill(const DynamicStep& step, int64_t pack, std::span<int32_t> ids) const {
  const MicroBatchShape& shape = step.packs[static_cast<size_t>(pack)];
  const auto row = static_cast<size_t>(shape.length) + 1;
  TRIREME_CHECK(ids.size() == static_cast<size_t>(shape.rows) * row, "a row a sample");
  std::ranges::fill(ids, -1);
  for (int64_t r = 0; r < shape.rows && shape.first_sample + r < step.num_samples(); ++r) {
    const int64_t sample = step.samples[static_cast<size_t>(shape.first_sample + r)];
    samples_->Read(sample,
                   ids.subspan(static_cast<size_t>(r) * row, static_cast<size_t>(samples_->Length(sample)) + 1));
  }
}

}  // namespace trireme::data
