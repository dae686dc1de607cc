#include "engine/data/bigram.h"

#include <cmath>

#include "engine/data/loader.h"
#include "engine/data/summary.h"
#include "tests/unit/data/dataset_files.h"

namespace trireme::data {
namespace {

TEST(Bigram, CountsByHand) {
  const TestFolder folder;
  WriteDocuments(folder / "a", TokenType::kUInt16, {{0, 1, 0}, {1, 2}, {0, 1, 1}});
  const IndexedDataset data(folder / "a");
  // Training 0 1 0 1 2: pairs 01 x2, 10, 12. Held out 0 1 1: -ln (2+1)/(2+3), -ln (0+1)/(2+3).
  const BigramResult result = HeldOutBigram(data, {0, 2}, {2, 3}, 3, 0);
  EXPECT_EQ(result.train_tokens, 5);
  EXPECT_EQ(result.predicted_tokens, 2);
  EXPECT_NEAR(result.loss, (-std::log(3.0 / 5) - std::log(1.0 / 5)) / 2, 1e-15);
  EXPECT_NEAR(HeldOutBigram(data, {0, 2}, {2, 3}, 5000, 0).loss, (-std::log(3.0 / 5002) - std::log(1.0 / 5002)) / 2,
              1e-12);  // the map
  EXPECT_EQ(ErrorOf([&] { HeldOutBigram(data, {0, 2}, {2, 3}, 2, 0); }).id(), "DAT006");
  EXPECT_EQ(ErrorOf([&] { HeldOutBigram(data, {0, 2}, {2, 3}, 3, 3); }).id(), "DAT008");
  EXPECT_EQ(ErrorOf([&] { HeldOutBigram(data, {0, 2}, {3, 3}, 3, 0); }).id(), "DAT008");
}

// The same labels as a full pass over the validation source.
TEST(Bigram, PredictsThePositionsOfTheValidationPass) {
  const TestFolder folder;
  constexpr int64_t kVocab = 5, kLength = 7;
  std::vector<std::vector<int32_t>> documents(40);
  for (size_t i = 0; i < documents.size(); ++i) {
    for (size_t j = 0; j < 20 + i; ++j) documents[i].push_back(static_cast<int32_t>((i * j * j + j) % kVocab));
  }
  WriteDocuments(folder / "a", TokenType::kUInt16, documents);
  const TrainingData data =
      OpenTrainingData({.data_path = folder / "a", .split = "95,5,0", .seq_length = kLength, .vocab_size = kVocab});
  const auto ranges = SplitOf(ParseSplit("95,5,0"), 40);
  std::vector<std::vector<double>> pairs(kVocab, std::vector<double>(kVocab, 1));
  std::vector<int32_t> train(static_cast<size_t>(data.tokens->FirstToken(ranges[0].end)));
  data.tokens->Read(0, train);
  for (size_t i = 1; i < train.size(); ++i) ++pairs[static_cast<size_t>(train[i - 1])][static_cast<size_t>(train[i])];
  double sum = 0;
  int64_t count = 0;
  std::vector<int32_t> sample(kLength + 1);
  for (int64_t s = 0; s < data.validation->num_samples(); ++s) {
    data.validation->Fill(s, 1, sample);
    for (size_t i = 0; i < kLength; ++i, ++count) {
      const auto& row = pairs[static_cast<size_t>(sample[i])];
      double total = 0;
      for (const double value : row) total += value;
      sum -= std::log(row[static_cast<size_t>(sample[i + 1])] / total);
    }
  }
  const BigramResult result = HeldOutBigram(*data.tokens, ranges[0], ranges[1], kVocab, kLength);
  EXPECT_EQ(result.predicted_tokens, count);
  EXPECT_NEAR(result.loss, sum / static_cast<double>(count), 1e-12);
}

TEST(Summary, CountsAndChecksIds) {
  const TestFolder folder;
  WriteDocuments(folder / "a", TokenType::kUInt16, {{3, 9}, {}, {9, 4, 5}});
  const IndexedDataset data(folder / "a");
  const DatasetSummary summary = Summarize(data);
  EXPECT_EQ(summary.documents, 3);
  EXPECT_EQ(summary.empty_documents, 1);
  EXPECT_EQ(summary.longest_document, 3);
  EXPECT_EQ(summary.smallest_id, 3);
  EXPECT_EQ(summary.largest_id, 9);
  EXPECT_EQ(summary.largest_id_token, 1);
  CheckIds(data, 10);
  ExpectContains(ErrorOf([&] { CheckIds(data, 9); }).what(), {"document 0, position 1: token id 9"});
}

// More tokens than one chunk of the reader, and than one thread counts.
TEST(Summary, LargeFilesAreCountedByParts) {
  const TestFolder folder;
  constexpr int64_t kTokens = 1'200'000;
  std::vector<int32_t> tokens(kTokens);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i % 2);
  tokens[777'777] = 2;
  WriteDocuments(folder / "a", TokenType::kUInt16, {tokens, tokens});
  const IndexedDataset data(folder / "a");
  EXPECT_EQ(Summarize(data).largest_id_token, 777'777);
  const BigramResult result = HeldOutBigram(data, {0, 1}, {1, 2}, 3, 0);
  EXPECT_EQ(result.predicted_tokens, kTokens - 1);
  EXPECT_LT(result.loss, 1e-4);
}

}  // namespace
}  // namespace trireme::data
