#include "engine/data/blend.h"

#include <algorithm>

#include "engine/data/loader.h"
#include "engine/data/tokenizer.h"
#include "tests/unit/data/dataset_files.h"

namespace trireme::data {
namespace {

using Words = std::vector<std::string>;

TEST(Blend, WordsOfDataPath) {
  const Blend weighted = ParseBlend({"3", "a", "1", "b"});
  EXPECT_EQ(weighted.prefixes, (Words{"a", "b"}));
  EXPECT_EQ(weighted.weights, (std::vector<double>{0.75, 0.25}));
  EXPECT_EQ(ParseBlend({"a", "b"}).prefixes, (Words{"a", "b"}));
  EXPECT_TRUE(ParseBlend({"a", "b"}).weights.empty());
  EXPECT_EQ(ParseBlend({"1", "b", "c"}).prefixes, (Words{"1", "b", "c"}));  // an odd number of words: no weights
  for (const Words& wrong : {Words{}, Words{"1", "a", "b", "c"}, Words{"0", "a", "1", "b"}, Words{"-1", "a"},
                             Words{"nan", "a", "1", "b"}, Words{"inf", "a", "1", "b"}}) {
    EXPECT_EQ(ErrorOf([&] { ParseBlend(wrong); }).id(), "DAT027");
  }
}

class BlendedData : public ::testing::Test {
 protected:
  BlendedData() {
    CountingDataset(folder_ / "a", {50, 30, 20});
    WriteDocuments(folder_ / "b", TokenType::kInt32, {std::vector<int32_t>(61, 900), std::vector<int32_t>(60, 901)});
  }
  DataRequest Request(const Words& words, int64_t samples) const {
    DataRequest request;
    request.split = "1";
    request.seq_length = 4;
    request.vocab_size = 1000;
    request.train_samples = samples;
    for (const std::string& word : words)
      request.blend.push_back(word == "a" || word == "b" ? (folder_ / word).string() : word);
    return request;
  }
  static std::vector<int32_t> All(const BatchSource& source, int64_t first) {
    std::vector<int32_t> tokens(static_cast<size_t>(source.num_samples() - first) * 5);
    source.Fill(first, source.num_samples() - first, tokens);
    return tokens;
  }
  TestFolder folder_;
};

TEST_F(BlendedData, SharesFollowTheWeightsOverSeveralEpochs) {
  const auto data = OpenTrainingData(Request({"1", "a", "3", "b"}, 400));
  int64_t of_b = 0;
  const auto tokens = All(*data.train, 0);
  for (size_t i = 0; i < tokens.size(); i += 5) of_b += tokens[i] >= 900;
  EXPECT_EQ(data.train->num_samples(), 400);
  EXPECT_EQ(of_b, 300);
}

TEST_F(BlendedData, WithoutWeightsEverySampleOnceAndNoMore) {
  const auto data = OpenTrainingData(Request({"a", "b"}, 54));  // 24 and 30
  EXPECT_EQ(data.train->num_samples(), 54);
  int64_t of_b = 0;
  const auto tokens = All(*data.train, 0);
  for (size_t i = 0; i < tokens.size(); i += 5) of_b += tokens[i] >= 900;
  EXPECT_EQ(of_b, 30);
  const Error error = ErrorOf([&] { OpenTrainingData(Request({"a", "b"}, 55)); });
  EXPECT_EQ(error.id(), "DAT028");
  ExpectContains(error.what(), {"55 samples", "have 54", "give each dataset a weight"});
}

TEST_F(BlendedData, ValidationHoldsEverySampleOfAllParts) {
  DataRequest request = Request({"0.9", "a", "0.1", "b"}, 4);
  request.split = "34,66,0";  // a: documents 1 and 2, b: document 1
  const auto data = OpenTrainingData(request);
  EXPECT_EQ(data.validation->num_samples(), 12 + 14);
  EXPECT_EQ(data.test, nullptr);
  auto tokens = All(*data.validation, 0);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 901), 14 * 5);
}

TEST_F(BlendedData, PositionRoundTripsAndResumeIsTheTail) {
  const DataRequest request = Request({"1", "a", "3", "b"}, 400);
  const auto whole = OpenTrainingData(request);
  EXPECT_EQ(whole.position.num_samples, 400);
  ASSERT_EQ(whole.position.parts.size(), 2u);
  DataPosition saved = PositionFromJson(PositionToJson(whole.position), "test");
  EXPECT_EQ(saved, whole.position);
  saved.consumed_samples = 123;
  DataRequest shorter = request;  // fewer steps: the saved order is kept
  shorter.train_samples = 200;
  shorter.saved_num_samples = saved.num_samples;
  const auto resumed = OpenTrainingData(shorter);
  EXPECT_TRUE(OrderDifferences(saved, resumed.position).empty());
  EXPECT_EQ(All(*resumed.train, 123), All(*whole.train, 123));

  const auto differences = [&](const DataRequest& other) {
    return OrderDifferences(saved, OpenTrainingData(other).position);
  };
  EXPECT_EQ(differences(Request({"a", "b"}, 50)).size(), 4u);  // weights and samples of both
  EXPECT_FALSE(differences(Request({"3", "a", "1", "b"}, 400)).empty());
  EXPECT_FALSE(differences(Request({"1", "b", "3", "a"}, 400)).empty());
  ExpectContains(differences(Request({"1", "a", "1", "a", "1", "b"}, 400)).front(), {"was 2, now it is 3"});
  DataRequest one = Request({}, 40);
  one.data_path = folder_ / "a";
  ExpectContains(differences(one).front(), {"was 2, now it is 0"});
}

TEST_F(BlendedData, WrongInputs) {
  SaveTokenizer(*MakeTokenizer("byte"), folder_ / "a");
  EXPECT_EQ(ErrorOf([&] {
              DataRequest request = Request({"a", "b"}, 5);
              request.vocab_size = 256;
              OpenTrainingData(request);
            }).id(),
            "DAT021");
  WriteAll(folder_ / "b.tokenizer.json",
           R"({"format": 1, "tokenizer": "bpe", "vocab_size": 300, "eod_id": 0, "eod_token": "x", "definition": {}})");
  EXPECT_EQ(ErrorOf([&] { OpenTrainingData(Request({"a", "b"}, 5)); }).id(), "DAT027");
  const auto data = OpenTrainingData(Request({"1", "a"}, 5));
  std::vector<int32_t> tokens(10);
  EXPECT_EQ(ErrorOf([&] { data.train->Fill(data.train->num_samples() - 1, 2, tokens); }).id(), "DAT009");
}

}  // namespace
}  // namespace trireme::data
