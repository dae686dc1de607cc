// The sampler by tokens over random lengths and settings: each sample once an epoch, no micro-batch above its budget,
// the same whatever ranks read it and wherever they begin.
#include "engine/data/dynamic_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "engine/base/error.h"

namespace trireme::data {
namespace {

class Lengths final : public SequenceSource {
 public:
  explicit Lengths(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {}
  int64_t num_samples() const override { return std::ssize(lengths_); }
  int64_t Length(int64_t sample) const override { return lengths_[static_cast<size_t>(sample)]; }
  void Read(int64_t sample, std::span<int32_t> ids) const override {
    std::ranges::fill(ids, static_cast<int32_t>(sample));
  }

 private:
  std::vector<int64_t> lengths_;
};

struct Case {
  std::shared_ptr<const Lengths> samples;
  DynamicBatchOptions options;
};

// Lengths as of text: many short ones, a few that are long.
Case RandomCase(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  DynamicBatchOptions options;
  options.longest = draw(3, 70);
  options.length_multiple = draw(1, 9);
  options.min_rows = draw(0, 2) == 0 ? draw(2, 3) : 1;
  options.max_tokens = options.longest * options.min_rows + draw(0, 150);
  options.max_rows = draw(0, 1) == 0 ? INT64_MAX : options.min_rows + draw(0, 6);
  options.packs = draw(1, 7);
  options.order = static_cast<StreamOrder>(draw(0, 2));
  options.seed = draw(0, 1000);
  std::vector<int64_t> lengths;
  std::exponential_distribution<double> exponential(4.0 / static_cast<double>(options.longest));
  for (int64_t i = 0; i < 300; ++i) {
    lengths.push_back(std::clamp<int64_t>(static_cast<int64_t>(exponential(random)), 1, options.longest));
  }
  // Enough of them for a step.
  while (std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) < 2 * options.packs * options.max_tokens) {
    lengths.push_back(options.longest);
  }
  return {std::make_shared<Lengths>(lengths), options};
}

constexpr uint64_t kSeeds = 60;

TEST(DynamicBatchesProperty, EverySampleOnceAnEpochAndNoBudgetIsExceeded) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Case c = RandomCase(seed);
    const DynamicBatches batches(c.samples, c.options);
    const int64_t n = batches.num_samples();
    std::vector<int64_t> seen;
    for (int64_t position = 0; position < 3 * n;) {
      const DynamicStep step = batches.At(position);
      ASSERT_EQ(std::ssize(step.packs), c.options.packs);
      ASSERT_GT(step.num_samples(), 0);
      int64_t samples = 0;
      for (const MicroBatchShape& pack : step.packs) {
        EXPECT_LE(pack.tokens(), c.options.max_tokens);
        EXPECT_LE(pack.length, c.options.longest);
        EXPECT_TRUE(pack.length % c.options.length_multiple == 0 || pack.length == c.options.longest);
        if (samples == step.num_samples()) continue;  // empty
        EXPECT_EQ(pack.first_sample, samples);
        EXPECT_GE(pack.rows, c.options.min_rows);
        EXPECT_LE(pack.rows, c.options.max_rows);
        for (int64_t row = 0; row < pack.rows; ++row, ++samples) {
          EXPECT_LE(c.samples->Length(step.samples[static_cast<size_t>(samples)]), pack.length);
        }
      }
      EXPECT_EQ(samples, step.num_samples());
      seen.insert(seen.end(), step.samples.begin(), step.samples.end());
      position += step.num_samples();
    }
    // Each epoch of the stream has each sample once.
    std::map<int64_t, int64_t> uses;
    for (const int64_t sample : seen) ++uses[sample];
    ASSERT_EQ(std::ssize(uses), n);
    for (const auto& [sample, count] : uses) {
      EXPECT_GE(count, std::ssize(seen) / n);
      EXPECT_LE(count, std::ssize(seen) / n + 1);
    }
  }
}

// One sample more would not fit: steps are as large as they can be.
TEST(DynamicBatchesProperty, AStepTakesTheLongestRun) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Case c = RandomCase(seed);
    c.options.min_rows = 1;
    c.options.order = StreamOrder::kFile;
    const int64_t count = DynamicBatches(c.samples, c.options).At(0).num_samples();
    ASSERT_LT(count, c.samples->num_samples());
    std::vector<int64_t> lengths;
    for (int64_t sample = 0; sample <= count; ++sample) lengths.push_back(c.samples->Length(sample));
    c.options.repeats = false;
    EXPECT_EQ(DynamicBatches(std::make_shared<Lengths>(lengths), c.options).At(0).num_samples(), count);
    lengths.pop_back();
    const DynamicStep step = DynamicBatches(std::make_shared<Lengths>(lengths), c.options).At(0);
    EXPECT_EQ(step.num_samples(), count);
    EXPECT_LT(step.packs.back().first_sample, count) << "a pack is empty";
  }
}

// All ranks compute the same table, whatever they computed before, and a run goes on anywhere.
TEST(DynamicBatchesProperty, AStepDependsOnItsPositionAlone) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Case c = RandomCase(seed);
    const DynamicBatches one(c.samples, c.options), other(c.samples, c.options);
    std::vector<int64_t> positions;
    for (int64_t position = 0; position < 2 * one.num_samples(); position += one.At(position).num_samples()) {
      positions.push_back(position);
    }
    for (const int64_t position : positions) one.At(position);
    std::ranges::reverse(positions);
    for (const int64_t position : positions) {
      const DynamicStep a = one.At(position), b = other.At(position);
      EXPECT_EQ(a.samples, b.samples);
      EXPECT_EQ(a.packs, b.packs);
    }
  }
}

TEST(DynamicBatchesProperty, OrdersAreThoseOfTheKeys) {
  const auto samples = std::make_shared<Lengths>(std::vector<int64_t>{3, 9, 1, 7, 5, 2, 8, 4, 6, 10});
  DynamicBatchOptions options{.packs = 1, .max_tokens = 10, .longest = 10};
  const auto stream = [&](StreamOrder order, int64_t count) {
    options.order = order;
    const DynamicBatches batches(samples, options);
    std::vector<int64_t> all;
    while (std::ssize(all) < count) {
      DynamicStep step = batches.At(std::ssize(all));
      std::ranges::sort(step.samples);
      all.insert(all.end(), step.samples.begin(), step.samples.end());
    }
    return all;
  };
  // Budgets of 10: samples 0 | 1 | ..., since a pack is rows x the longest of them.
  EXPECT_EQ(stream(StreamOrder::kFile, 10), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  const std::vector<int64_t> by_length = stream(StreamOrder::kLength, 10);
  EXPECT_EQ(by_length, (std::vector<int64_t>{0, 2, 5, 4, 7, 8, 3, 6, 1, 9}));
  const std::vector<int64_t> shuffled = stream(StreamOrder::kRandom, 20);
  EXPECT_NE(std::vector(shuffled.begin(), shuffled.begin() + 10), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_NE(std::vector(shuffled.begin(), shuffled.begin() + 10),
            std::vector(shuffled.begin() + 10, shuffled.begin() + 20));
}

TEST(DynamicBatchesProperty, APassThatEndsHasEachSampleOnceAndEmptyPacksAfterIt) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Case c = RandomCase(seed);
    c.options.repeats = false;
    const DynamicBatches batches(c.samples, c.options);
    std::vector<int64_t> seen;
    while (std::ssize(seen) < batches.num_samples()) {
      const DynamicStep step = batches.At(std::ssize(seen));
      ASSERT_GT(step.num_samples(), 0);
      seen.insert(seen.end(), step.samples.begin(), step.samples.end());
    }
    std::ranges::sort(seen);
    ASSERT_EQ(std::ssize(seen), batches.num_samples());
    for (int64_t i = 0; i < batches.num_samples(); ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], i);
    const DynamicStep after = batches.At(batches.num_samples());
    EXPECT_EQ(after.num_samples(), 0);
    for (int64_t pack = 0; pack < c.options.packs; ++pack) {
      const MicroBatchShape& shape = after.packs[static_cast<size_t>(pack)];
      std::vector<int32_t> ids(static_cast<size_t>(shape.rows * (shape.length + 1)), 7);
      batches.Fill(after, pack, ids);
      EXPECT_EQ(std::ranges::count(ids, -1), std::ssize(ids));
    }
  }
}

TEST(DynamicBatches, RowsAreSamplesPaddedWithNoToken) {
  const auto samples = std::make_shared<Lengths>(std::vector<int64_t>{2, 5, 3});
  const DynamicBatches batches(samples,
                               {.packs = 1, .max_tokens = 24, .longest = 8, .length_multiple = 4, .repeats = false});
  const DynamicStep step = batches.At(0);
  ASSERT_EQ(step.packs[0], (MicroBatchShape{3, 8, 0}));
  std::vector<int32_t> ids(27);
  batches.Fill(step, 0, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{1,  1,  1,  1,  1, 1, -1, -1, -1, 0,  0,  0,  -1, -1,
                                       -1, -1, -1, -1, 2, 2, 2,  2,  -1, -1, -1, -1, -1}));
}

TEST(DynamicBatches, TooLittleTextIsSaid) {
  const auto samples = std::make_shared<Lengths>(std::vector<int64_t>{2, 5, 3});
  try {
    const DynamicBatches batches(samples, {.packs = 2, .max_tokens = 24, .longest = 8});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.id(), "DAT029");
    EXPECT_NE(std::string(error.what()).find("3 samples make 1 micro-batches"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace trireme::data
