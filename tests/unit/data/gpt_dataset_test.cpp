#include "engine/data/gpt_dataset.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "engine/data/numpy_random.h"
#include "engine/data/split.h"
#include "tests/unit/data/dataset_files.h"

namespace trireme::data {
namespace {

template <typename T>
std::vector<int64_t> Values(std::span<const T> values) {
  return {values.begin(), values.end()};
}

TEST(NumpyRandom, GoldenShuffle) {
  NumpyRandom random(1234);
  std::vector<int> values(10);
  std::iota(values.begin(), values.end(), 0);
  random.Shuffle(std::span(values));
  EXPECT_EQ(values, (std::vector<int>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
  std::iota(values.begin(), values.end(), 0);
  random.Shuffle(std::span(values));
  EXPECT_EQ(values, (std::vector<int>{7, 3, 5, 1, 4, 8, 0, 2, 6, 9}));
}

TEST(NumpyRandom, BoundedAbove32Bits) {
  NumpyRandom random(5);
  std::mt19937 engine(5);
  const uint64_t high = engine();
  const uint64_t both = high << 32 | engine();
  EXPECT_EQ(random.Bounded(~uint64_t{0}), both);
}

TEST(GptDataset, GoldenIndexOfTwoEpochs) {
  const TestFolder folder;
  const auto data = CountingDataset(folder / "a", {5, 3, 7, 4, 6});
  const GptDataset samples(data, {0, 5}, {.seq_length = 4, .num_samples = 8, .seed = 1234});
  EXPECT_EQ(samples.plan().num_epochs, 2);
  EXPECT_TRUE(samples.plan().separate_last_epoch);
  EXPECT_EQ(samples.num_samples(), 12);
  EXPECT_EQ(Values(samples.document_index()), (std::vector<int64_t>{4, 0, 1, 2, 3, 3, 2, 1, 0, 4}));
  EXPECT_EQ(Values(samples.boundary_documents()), (std::vector<int64_t>{0, 0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 9}));
  EXPECT_EQ(Values(samples.boundary_offsets()), (std::vector<int64_t>{0, 4, 2, 1, 2, 6, 3, 3, 3, 0, 1, 0, 4}));
  EXPECT_EQ(Values(samples.shuffle_index()), (std::vector<int64_t>{0, 4, 3, 2, 5, 1, 7, 6, 9, 8, 11, 10}));
  std::vector<int32_t> tokens(5);
  samples.Read(0, tokens);  // document 4 begins at token 19
  EXPECT_EQ(tokens, (std::vector<int32_t>{19, 20, 21, 22, 23}));
  samples.Read(5, tokens);  // boundary 1: the fifth token of document 4, then documents 0 ...
  EXPECT_EQ(tokens, (std::vector<int32_t>{23, 24, 0, 1, 2}));
  EXPECT_EQ(samples.TokenOf(5, 1), 24);
  EXPECT_EQ(samples.TokenOf(5, 2), 0);
}

TEST(GptDataset, FileOrderIsTheWholeFileFromTheFront) {
  const TestFolder folder;
  const auto data = CountingDataset(folder / "a", {9, 0, 8});
  const GptDataset samples(data, {0, 3}, {.seq_length = 4, .order = SampleOrder::kFile});
  ASSERT_EQ(samples.num_samples(), 4);
  std::vector<int32_t> tokens(5);
  samples.Read(2, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{8, 9, 10, 11, 12}));
  samples.Read(3, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{12, 13, 14, 15, 16}));
  const Error error = ErrorOf([&] {
    GptDataset(data, {0, 3}, {.seq_length = 4, .num_samples = 5, .order = SampleOrder::kFile});
  });
  EXPECT_EQ(error.id(), "DAT009");
  ExpectContains(error.what(), {"5 samples", "there are 4", "--train-iters"});
}

TEST(GptDataset, TooFewTokensAndWrongOptions) {
  const TestFolder folder;
  const auto data = CountingDataset(folder / "a", {3, 1});
  const Error small = ErrorOf([&] { GptDataset(data, {0, 2}, {.seq_length = 4}); });
  EXPECT_EQ(small.id(), "DAT008");
  ExpectContains(small.what(), {"hold 4 tokens", "needs 5"});
  EXPECT_EQ(ErrorOf([&] { GptDataset(data, {1, 1}, {.seq_length = 4, .num_samples = 2}); }).id(), "DAT008");
  EXPECT_EQ(GptDataset(data, {0, 2}, {.seq_length = 4, .num_samples = 3}).plan().num_epochs, 4);  // 13 tokens
  EXPECT_EQ(ErrorOf([&] { GptDataset(data, {0, 2}, {.seq_length = 0}); }).code(), ErrorCode::kUsage);
  EXPECT_EQ(ErrorOf([&] { GptDataset(data, {0, 2}, {.seq_length = 2, .seed = -1}); }).code(), ErrorCode::kUsage);
  EXPECT_EQ(ErrorOf([&] {
              GptDataset(data, {0, 2}, {.seq_length = 2, .seed = int64_t{1} << 32});
            }).code(),
            ErrorCode::kUsage);
}

TEST(GptDataset, ThreadsDoNotChangeTheIndex) {
  const TestFolder folder;
  std::vector<int64_t> lengths;
  for (int i = 0; i < 3000; ++i) lengths.push_back(i * 7919 % 101);
  const auto data = CountingDataset(folder / "a", lengths);
  const GptDatasetOptions base{.seq_length = 2, .num_samples = 100000, .seed = 3, .threads = 1};
  const GptDataset one(data, {0, 3000}, base);
  for (const int threads : {2, 3, 7}) {
    GptDatasetOptions options = base;
    options.threads = threads;
    const GptDataset many(data, {0, 3000}, options);
    EXPECT_TRUE(std::ranges::equal(one.shuffle_index(), many.shuffle_index()));
    EXPECT_TRUE(std::ranges::equal(one.boundary_documents(), many.boundary_documents()));
    EXPECT_TRUE(std::ranges::equal(one.boundary_offsets(), many.boundary_offsets()));
  }
}

// The index is built in memory at each start, so a new length or seed costs this and no more; 1e7 documents take
// seconds.
TEST(GptDataset, DAT_10_IndexOfManyDocumentsIsBuiltQuickly) {
  const TestFolder folder;
  constexpr int kDocuments = 300'000;
  const auto data = CountingDataset(folder / "a", std::vector<int64_t>(kDocuments, 3));
  const auto start = std::chrono::steady_clock::now();
  const GptDataset samples(data, {0, kDocuments}, {.seq_length = 3});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(samples.num_samples(), kDocuments - 1);
  EXPECT_LT(seconds, 6.0) << "0.02 s were measured; a quadratic step would take minutes";
}

TEST(Split, RangesAndErrors) {
  const auto ranges = SplitOf(ParseSplit("969,30,1"), 1000);
  EXPECT_EQ(ranges[0], (SplitRange{0, 969}));
  EXPECT_EQ(ranges[1], (SplitRange{969, 999}));
  EXPECT_EQ(ranges[2], (SplitRange{999, 1000}));
  EXPECT_EQ(SplitOf(ParseSplit("100"), 7)[0], (SplitRange{0, 7}));
  EXPECT_EQ(SplitOf(ParseSplit("98/2/0"), 50)[1], (SplitRange{49, 50}));
  for (const char* text : {"", "a", "1,,2", "1,2,3,4", "0,0,0", "-1,2", "1e999", "nan,1"}) {
    EXPECT_EQ(ErrorOf([&] { ParseSplit(text); }).id(), "DAT007") << text;
  }
}

}  // namespace
}  // namespace trireme::data
