#include "engine/data/loader.h"

#include <map>
#include <set>
#include <thread>

#include "engine/data/sampler.h"
#include "engine/data/tokenizer.h"
#include "tests/unit/data/dataset_files.h"

namespace trireme::data {
namespace {

struct Layout {
  int64_t num_micro_batches, dp_size, micro_batch_size;
  int64_t global_batch() const { return GlobalBatchSize(num_micro_batches, dp_size, micro_batch_size); }
};

// The samples that all ranks together take in one step.
std::set<int64_t> SamplesOfStep(int64_t consumed, const Layout& layout) {
  std::set<int64_t> out;
  for (int64_t m = 0; m < layout.num_micro_batches; ++m) {
    for (int64_t r = 0; r < layout.dp_size; ++r) {
      const int64_t first = FirstSample(consumed, m, r, layout.dp_size, layout.micro_batch_size);
      for (int64_t i = 0; i < layout.micro_batch_size; ++i) out.insert(first + i);
    }
  }
  return out;
}

// First tokens of the samples [first, end): in a counting dataset they identify a sample.
std::vector<int32_t> FirstTokens(const BatchSource& source, int64_t first, int64_t end) {
  const size_t row = static_cast<size_t>(source.seq_length()) + 1;
  std::vector<int32_t> tokens(static_cast<size_t>(end - first) * row), out;
  source.Fill(first, end - first, tokens);
  for (size_t i = 0; i < tokens.size(); i += row) out.push_back(tokens[i]);
  return out;
}

TEST(Sampler, MegatronsFormula) {
  // Step 2, micro-batch 1, rank 2 of 3, micro-batches of 4, accumulation 5.
  const int64_t consumed = 2 * GlobalBatchSize(5, 3, 4);
  EXPECT_EQ(FirstSample(consumed, 1, 2, 3, 4), ((2 * 5 + 1) * 3 + 2) * 4);
}

TEST(Sampler, TheSetOfAStepDoesNotDependOnTheLayout) {
  const std::set<int64_t> one = SamplesOfStep(48, {1, 1, 12});
  EXPECT_EQ(*one.begin(), 48);
  EXPECT_EQ(*one.rbegin(), 59);
  for (const Layout& layout : {Layout{12, 1, 1}, {1, 12, 1}, {3, 2, 2}, {2, 3, 2}, {1, 4, 3}})
    EXPECT_EQ(SamplesOfStep(48, layout), one);
}

// 50 samples an epoch, 2 ranks, 3 epochs: resumed in the middle of the second and third the same samples follow.
TEST(Loader, DAT_03_ResumeInsideALaterEpoch) {
  const TestFolder folder;
  CountingDataset(folder / "a", std::vector<int64_t>(50, 4));
  const DataRequest request{
      .data_path = folder / "a", .split = "1", .seq_length = 4, .vocab_size = 1000, .train_samples = 148, .seed = 5};
  const TrainingData whole = OpenTrainingData(request);
  const std::vector<int32_t> order = FirstTokens(*whole.train, 0, 148);
  ASSERT_EQ(whole.position.num_epochs, 3);
  std::map<int32_t, int> seen;
  for (const int32_t token : order) ++seen[token];
  for (const auto& [token, count] : seen) EXPECT_LE(count, 3) << "the sample that begins at token " << token;
  for (const int64_t consumed : {0, 57, 64, 100, 114, 147}) {
    const TrainingData resumed = OpenTrainingData(request);
    EXPECT_EQ(OrderDifferences(whole.position, resumed.position), std::vector<std::string>());
    EXPECT_EQ(FirstTokens(*resumed.train, consumed, 148), std::vector<int32_t>(order.begin() + consumed, order.end()));
  }
}

// 2 epochs of 10 steps, saved at step 10: ten more steps are due, and their samples exist.
TEST(Loader, DAT_05_ResumeAtTheEndOfAnEpoch) {
  const TestFolder folder;
  CountingDataset(folder / "a", std::vector<int64_t>(41, 4));
  const Layout layout{1, 2, 2};
  const TrainingData data = OpenTrainingData(
      {.data_path = folder / "a", .split = "1", .seq_length = 4, .vocab_size = 1000, .train_samples = 80});
  int64_t consumed = 10 * layout.global_batch();
  EXPECT_EQ(StepsLeft(consumed, 80, layout.global_batch()), 10);
  int64_t done = 0;
  for (; StepsLeft(consumed, 80, layout.global_batch()) > 0; consumed += layout.global_batch(), ++done) {
    EXPECT_EQ(FirstTokens(*data.train, consumed, consumed + layout.global_batch()).size(), 4u);
  }
  EXPECT_EQ(done, 10);
  EXPECT_EQ(consumed, 80);
}

// 10 steps of 8, then steps of 4 on another number of ranks: the next sample is number 80.
TEST(Loader, DAT_09_ResumeWithAnotherBatchAndRankCount) {
  const Layout before{2, 2, 2}, after{1, 4, 1};
  int64_t consumed = 0;
  std::set<int64_t> seen;
  for (int step = 0; step < 10; ++step, consumed += before.global_batch()) seen.merge(SamplesOfStep(consumed, before));
  EXPECT_EQ(*SamplesOfStep(consumed, after).begin(), 80);
  for (int step = 0; step < 10; ++step, consumed += after.global_batch()) {
    std::set<int64_t> next = SamplesOfStep(consumed, after);
    seen.merge(next);
    EXPECT_TRUE(next.empty()) << "samples seen twice";
  }
  EXPECT_EQ(seen.size(), 120u);
  EXPECT_EQ(*seen.rbegin(), 119);
}

// With several epochs the order depends on the length of the run; a resumed, shorter run keeps the saved order.
TEST(Loader, DAT_09_AShorterRunKeepsTheSavedOrder) {
  const TestFolder folder;
  CountingDataset(folder / "a", std::vector<int64_t>(50, 4));
  DataRequest request{
      .data_path = folder / "a", .split = "1", .seq_length = 4, .vocab_size = 1000, .train_samples = 148};
  const TrainingData saved = OpenTrainingData(request);
  request.train_samples = 90;
  const TrainingData other = OpenTrainingData(request);
  ASSERT_EQ(OrderDifferences(saved.position, other.position).size(), 1u);
  ExpectContains(OrderDifferences(saved.position, other.position)[0], {"148", "90"});
  request.saved_num_samples = saved.position.num_samples;
  const TrainingData kept = OpenTrainingData(request);
  EXPECT_EQ(OrderDifferences(saved.position, kept.position), std::vector<std::string>());
  EXPECT_EQ(FirstTokens(*saved.train, 0, 90), FirstTokens(*kept.train, 0, 90));
}

TEST(Loader, PositionSurvivesAndNoticesOtherData) {
  const TestFolder folder;
  CountingDataset(folder / "a", {40, 41});
  CountingDataset(folder / "b", {41, 40});
  DataRequest request{.data_path = folder / "a", .split = "1", .seq_length = 4, .vocab_size = 1000};
  DataPosition position = OpenTrainingData(request).position;
  position.consumed_samples = 12;
  EXPECT_EQ(PositionFromJson(PositionToJson(position), "here"), position);
  EXPECT_EQ(ErrorOf([] { PositionFromJson("{\"seed\": 1}", "rank_0.h5"); }).code(), ErrorCode::kCheckpoint);
  request.data_path = folder / "b";
  EXPECT_EQ(OrderDifferences(position, OpenTrainingData(request).position).size(), 1u);  // the hash
  request.seed = 3;
  EXPECT_EQ(OrderDifferences(position, OpenTrainingData(request).position).size(), 2u);
}

TEST(Loader, DAT_06_TokenIdBeyondVocabulary) {
  const TestFolder folder;
  std::vector<std::vector<int32_t>> documents(4, std::vector<int32_t>(20, 511));
  documents[2][13] = 512;
  WriteDocuments(folder / "a", TokenType::kUInt16, documents);
  // The vocabulary has 512 ids and is padded to 640 in memory: 512 is refused all the same.
  const TrainingData data =
      OpenTrainingData({.data_path = folder / "a", .split = "1", .seq_length = 8, .vocab_size = 512});
  std::vector<int32_t> tokens(9 * 9);
  const Error error = ErrorOf([&] { data.train->Fill(0, 9, tokens); });
  EXPECT_EQ(error.id(), "DAT006");
  EXPECT_EQ(error.code(), ErrorCode::kData);
  ExpectContains(error.what(), {"a.bin", "document 2", "position 13", "token id 512", "vocabulary of 512", "fix:"});
  OpenTrainingData({.data_path = folder / "a", .split = "1", .seq_length = 8, .vocab_size = 513})
      .train->Fill(0, 9, tokens);

  documents[2][13] = 7;
  WriteDocuments(folder / "b", TokenType::kInt32, documents);
  std::string bin = ReadAll(folder / "b.bin");
  bin.replace(4 * 53, 4, "\xff\xff\xff\xff");
  WriteAll(folder / "b.bin", bin);
  const TrainingData negative =
      OpenTrainingData({.data_path = folder / "b", .split = "1", .seq_length = 8, .vocab_size = 512});
  ExpectContains(ErrorOf([&] { negative.train->Fill(0, 9, tokens); }).what(), {"document 2, position 13: token id -1"});
}

TEST(Loader, DAT_06_ModelVocabularySmallerThanTheTokenisers) {
  const TestFolder folder;
  CountingDataset(folder / "a", {40});
  SaveTokenizer(*MakeTokenizer("byte"), folder / "a");
  const Error error =
      ErrorOf([&] { OpenTrainingData({.data_path = folder / "a", .split = "1", .seq_length = 4, .vocab_size = 256}); });
  EXPECT_EQ(error.id(), "DAT021");
  ExpectContains(error.what(), {"257 ids", "vocabulary is 256", "vocab_size to 257"});
}

TEST(Loader, SplitsAndTheirFullPasses) {
  const TestFolder folder;
  CountingDataset(folder / "a", std::vector<int64_t>(100, 10));
  DataRequest request{
      .data_path = folder / "a", .split = "90,9,1", .seq_length = 16, .vocab_size = 5000, .train_samples = 20};
  const TrainingData data = OpenTrainingData(request);
  ASSERT_NE(data.validation, nullptr);
  EXPECT_EQ(data.validation->num_samples(), 89 / 16);
  EXPECT_EQ(FirstTokens(*data.validation, 0, 5), (std::vector<int32_t>{900, 916, 932, 948, 964}));
  EXPECT_EQ(data.test, nullptr);  // 10 tokens, less than one sample
  for (const int32_t token : FirstTokens(*data.train, 0, 20)) EXPECT_LT(token, 900);
  request.no_shuffle = true;
  const TrainingData in_order = OpenTrainingData(request);
  EXPECT_EQ(FirstTokens(*in_order.train, 18, 20), (std::vector<int32_t>{288, 304}));
  EXPECT_EQ(in_order.train->num_samples(), 999 / 16);
  EXPECT_EQ(in_order.validation, nullptr);
  std::vector<int32_t> tokens(17);
  EXPECT_EQ(ErrorOf([&] { in_order.train->Fill(62, 1, tokens); }).id(), "DAT009");
}

TEST(Loader, ManyThreadsReadAtOnce) {
  const TestFolder folder;
  CountingDataset(folder / "a", std::vector<int64_t>(100, 10));
  const TrainingData data = OpenTrainingData(
      {.data_path = folder / "a", .split = "1", .seq_length = 7, .vocab_size = 1000, .train_samples = 140});
  const std::vector<int32_t> want = FirstTokens(*data.train, 0, 140);
  std::vector<std::vector<int32_t>> got(4);
  std::vector<std::thread> threads;
  for (auto& mine : got) threads.emplace_back([&] { mine = FirstTokens(*data.train, 0, 140); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : got) EXPECT_EQ(mine, want);
}

}  // namespace
}  // namespace trireme::data
