// Against files and sample orders made by Megatron-LM core 0.16.1, NumPy 2.4.6 and DeepSpeed 0.19.8: make_fixtures.py.
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <numeric>

#include "engine/data/gpt_dataset.h"
#include "engine/data/numpy_random.h"
#include "tests/unit/data/dataset_files.h"

namespace trireme::data {
namespace {

using nlohmann::json;

std::filesystem::path Fixture(const std::string& name) {
  return std::filesystem::path(TRIREME_TEST_DATA) / "fixtures" / name;
}
const json& Fixtures() {
  static const json all = json::parse(ReadAll(Fixture("orders.json")));
  return all;
}

template <typename T>
std::vector<int64_t> Values(std::span<const T> values) {
  return {values.begin(), values.end()};
}

TEST(Megatron, NumPysShuffles) {
  ASSERT_GE(Fixtures()["shuffles"].size(), 7u);
  for (const json& want : Fixtures()["shuffles"]) {
    NumpyRandom random(want["seed"].get<uint32_t>());
    for (const char* which : {"first", "second"}) {
      std::vector<int64_t> values(want[which].size());
      std::iota(values.begin(), values.end(), 0);
      random.Shuffle(std::span(values));
      EXPECT_EQ(values, want[which].get<std::vector<int64_t>>()) << "seed " << want["seed"] << ", " << which;
    }
  }
}

TEST(Megatron, DocumentSampleAndShuffleIndex) {
  ASSERT_GE(Fixtures()["orders"].size(), 50u);
  int separate = 0, joint = 0;
  for (const json& want : Fixtures()["orders"]) {
    const std::string which =
        fmt::format("{} [{}, {}) length {}, {} samples, seed {}", want["file"].get<std::string>(),
                    want["begin"].get<int>(), want["end"].get<int>(), want["seq_length"].get<int>(),
                    want["num_samples"].get<int>(), want["seed"].get<int64_t>());
    SCOPED_TRACE(which);
    const auto data = std::make_shared<const IndexedDataset>(Fixture(want["file"]));
    const GptDataset got(data, {want["begin"], want["end"]},
                         {.seq_length = want["seq_length"], .num_samples = want["num_samples"], .seed = want["seed"]});
    EXPECT_EQ(Values(got.document_index()), want["document_index"].get<std::vector<int64_t>>());
    EXPECT_EQ(Values(got.shuffle_index()), want["shuffle_index"].get<std::vector<int64_t>>());
    std::vector<std::vector<int64_t>> boundaries;
    for (size_t i = 0; i < got.boundary_documents().size(); ++i)
      boundaries.push_back({got.boundary_documents()[i], got.boundary_offsets()[i]});
    EXPECT_EQ(boundaries, want["sample_index"].get<std::vector<std::vector<int64_t>>>());
    std::vector<int32_t> tokens(want["seq_length"].get<size_t>() + 1);
    for (size_t i = 0; i < want["first_samples"].size(); ++i) {
      got.Read(static_cast<int64_t>(i), tokens);
      EXPECT_EQ(tokens, want["first_samples"][i].get<std::vector<int32_t>>());
    }
    if (got.plan().num_epochs > 1) ++(got.plan().separate_last_epoch ? separate : joint);
  }
  EXPECT_GE(separate, 5);
  EXPECT_GE(joint, 5);
}

TEST(Megatron, Splits) {
  for (const json& want : Fixtures()["splits"]) {
    const auto got = SplitOf(ParseSplit(want["split"].get<std::string>()), want["n"]);
    for (size_t i = 0; i < 3; ++i) {
      if (want["ranges"][i].is_null()) {  // Megatron-LM has no dataset where the weight is 0
        EXPECT_EQ(got[i].size(), 0) << want.dump();
      } else {
        EXPECT_EQ(got[i], (SplitRange{want["ranges"][i][0], want["ranges"][i][1]})) << want.dump();
      }
    }
  }
}

TEST(Megatron, TokenFilesOfAllTypes) {
  const std::vector<std::pair<std::string, TokenType>> files = {{"uint8", TokenType::kUInt8},
                                                                {"int8", TokenType::kInt8},
                                                                {"int16", TokenType::kInt16},
                                                                {"int64", TokenType::kInt64},
                                                                {"uint16", TokenType::kUInt16}};
  for (const auto& [name, type] : files) {
    const IndexedDataset data(Fixture("megatron_" + name));
    EXPECT_EQ(data.type(), type);
    EXPECT_EQ(data.num_documents(), 5);
    EXPECT_EQ(data.num_sequences(), 6);  // the last document has two
    std::vector<int32_t> all(25), want(25);
    std::iota(want.begin(), want.end(), 0);
    data.Read(0, all);
    EXPECT_EQ(all, want) << name;
  }
}

TEST(Megatron, WritesTheSameBytes) {
  const TestFolder folder;
  for (const auto& [name, type] :
       {std::pair{"megatron_uint16", TokenType::kUInt16}, {"megatron_int32", TokenType::kInt32}}) {
    const IndexedDataset data(Fixture(name));
    IndexedWriter writer(folder / name, type);
    for (int64_t document = 0; document < data.num_documents(); ++document) {
      for (int64_t i = data.FirstSequence(document); i < data.FirstSequence(document + 1); ++i) {
        std::vector<int32_t> tokens(static_cast<size_t>(data.Length(i)));
        data.Read(data.FirstToken(i), tokens);
        writer.AddSequence(tokens);
      }
      writer.EndDocument();
    }
    writer.Finish();
    for (const char* end : {".bin", ".idx"})
      EXPECT_EQ(ReadAll(folder / (name + std::string(end))), ReadAll(Fixture(name + std::string(end))));
  }
}

TEST(Megatron, FileOfDeepSpeedsDataTools) {
  EXPECT_EQ(ErrorOf([] { IndexedDataset data(Fixture("deepspeed_uint16")); }).id(), "DAT004");
  const IndexedDataset data(Fixture("deepspeed_uint16"), CodeTable::kDeepSpeed);
  EXPECT_EQ(data.type(), TokenType::kUInt16);
  EXPECT_EQ(data.num_documents(), 3);
  std::vector<int32_t> all(6);
  data.Read(0, all);
  EXPECT_EQ(all, (std::vector<int32_t>{7, 8, 65499, 1, 2, 3}));
}

}  // namespace
}  // namespace trireme::data
