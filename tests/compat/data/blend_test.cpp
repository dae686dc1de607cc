// Blends against those of Megatron-LM core 0.16.1: make_blends.py.
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cstdlib>

#include "engine/data/blend.h"
#include "engine/data/loader.h"
#include "tests/unit/data/dataset_files.h"

namespace trireme::data {
namespace {

using nlohmann::json;

const std::string kFixtures = std::string(TRIREME_TEST_DATA) + "/fixtures/";

const json& Fixtures() {
  static const json all = json::parse(ReadAll(kFixtures + "blends.json"));
  return all;
}

TEST(Blend, OrderByWeights) {
  ASSERT_GE(Fixtures()["indices"].size(), 7u);
  for (const json& want : Fixtures()["indices"]) {
    const auto weights = NormalizeWeights(NormalizeWeights(want["weights"].get<std::vector<double>>()));
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT_EQ(weights[i], std::strtod(want["normalized"][i].get<std::string>().c_str(), nullptr)) << i;
    const BlendOrder got = OrderByWeights(weights, want["size"]);
    EXPECT_EQ(got.datasets, want["datasets"].get<std::vector<int16_t>>());
    EXPECT_EQ(got.samples, want["samples"].get<std::vector<int64_t>>());
  }
}

TEST(Blend, OrderOfAll) {
  for (const json& want : Fixtures()["exhaustive"]) {
    const BlendOrder got = OrderOfAll(want["sizes"].get<std::vector<int64_t>>());
    EXPECT_EQ(got.datasets, want["datasets"].get<std::vector<int16_t>>());
    EXPECT_EQ(got.samples, want["samples"].get<std::vector<int64_t>>());
  }
}

TEST(Blend, TokensOfEverySample) {
  ASSERT_GE(Fixtures()["blends"].size(), 5u);
  for (const json& want : Fixtures()["blends"]) {
    SCOPED_TRACE(want["words"].dump());
    DataRequest request;
    request.split = "1";
    request.seq_length = want["seq_length"];
    request.vocab_size = 1000;
    request.train_samples = want["num_samples"];
    request.seed = want["seed"];
    for (std::string word : want["words"]) request.blend.push_back(word[0] == 'm' ? kFixtures + word : word);
    const TrainingData data = OpenTrainingData(request);
    // Megatron-LM's blend is longer where the shares are rounded up.
    ASSERT_EQ(data.train->num_samples(), std::ssize(want["tokens"]));
    std::vector<int32_t> tokens(static_cast<size_t>(request.seq_length) + 1);
    for (int64_t i = 0; i < data.train->num_samples(); ++i) {
      data.train->Fill(i, 1, tokens);
      EXPECT_EQ(tokens, want["tokens"][static_cast<size_t>(i)].get<std::vector<int32_t>>()) << i;
    }
  }
}

}  // namespace
}  // namespace trireme::data
