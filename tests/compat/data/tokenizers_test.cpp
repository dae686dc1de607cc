// Against ids and vocabularies made by the `tokenizers` package 0.23.3: make_tokenizers.py.
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/data/bpe/bpe_tokenizer.h"
#include "engine/data/bpe/train.h"
#include "engine/data/bpe/unicode.h"
#include "tests/unit/data/dataset_files.h"

namespace trireme::data {
namespace {

using nlohmann::json;

std::filesystem::path Fixture(const std::string& name) {
  return std::filesystem::path(TRIREME_TEST_DATA) / "fixtures/tokenizers" / name;
}

const std::vector<std::string>& Lines() {
  static const auto lines = json::parse(ReadAll(Fixture("lines.json")))["lines"].get<std::vector<std::string>>();
  return lines;
}

std::vector<int32_t> Encode(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  tokenizer.Encode(text, ids);
  return ids;
}

class Family : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Tokenizers, Family, ::testing::Values("gpt2", "llama3", "qwen2"));

TEST_P(Family, IdsOfTwoThousandTexts) {
  const auto tokenizer = MakeTokenizer(Fixture(GetParam() + ".json").string());
  const IndexedDataset want(Fixture(GetParam()));
  ASSERT_GE(Lines().size(), 2000u);
  ASSERT_EQ(want.num_documents(), std::ssize(Lines()));
  int wrong = 0;
  for (int pass = 0; pass < 2; ++pass) {  // the second finds the pieces remembered
    for (size_t i = 0; i < Lines().size() && wrong < 10; ++i) {
      const auto sequence = static_cast<int64_t>(i);
      std::vector<int32_t> ids(static_cast<size_t>(want.Length(sequence)));
      want.Read(want.FirstToken(sequence), ids);
      EXPECT_EQ(Encode(*tokenizer, Lines()[i]), ids) << "text " << i << ": " << json(Lines()[i]).dump() << wrong++;
    }
  }
}

TEST_P(Family, DecodeGivesTheTextBack) {
  const auto tokenizer = MakeTokenizer(Fixture(GetParam() + ".json").string());
  for (const std::string& line : Lines()) {
    std::string scratch;
    const std::string want(GetParam() == "qwen2" ? std::string(Normalize(line, NormalForm::kNfc, scratch)) : line);
    ASSERT_EQ(tokenizer->Decode(Encode(*tokenizer, line)), want) << json(line).dump();
    // Token by token, as `generate` shows it: never half a character.
    std::string shown, held;
    for (const int32_t id : Encode(*tokenizer, line)) {
      held += tokenizer->Decode(std::span(&id, 1));
      const size_t whole = CompleteUtf8(held);
      ASSERT_EQ(ValidUtf8Prefix(held.substr(0, whole)), whole);
      shown += held.substr(0, whole);
      held.erase(0, whole);
    }
    ASSERT_EQ(shown + held, want);
    ASSERT_EQ(held, "");
  }
}

TEST_P(Family, TrainingGivesTheSameVocabularyAndMerges) {
  const TestFolder folder;
  std::string text;
  for (const std::string& line : Lines()) text += json{{"text", line}}.dump() + "\n";
  WriteAll(folder / "a.jsonl", text);
  const json want = json::parse(ReadAll(Fixture(GetParam() + ".json")));
  std::vector<std::string> written;
  for (const int workers : {1, 3}) {
    TrainTokenizerOptions options{.inputs = {folder / "a.jsonl"}, .format = TextFormat::kJsonl, .family = GetParam()};
    options.vocab_size = std::ssize(want["model"]["vocab"]);
    options.workers = workers;
    options.block_bytes = 4000;
    written.push_back(TrainTokenizer(options, [](TrainPhase, int64_t, int64_t) {}));
  }
  EXPECT_EQ(written[0], written[1]) << "threads change the result";
  const json got = json::parse(written[0]);
  EXPECT_TRUE(got["model"] == want["model"]);
  EXPECT_EQ(got["normalizer"], want["normalizer"]);
  EXPECT_EQ(got["decoder"], want["decoder"]);
  EXPECT_EQ(got["added_tokens"][0], want["added_tokens"][0]);
  const json cutter = want["pre_tokenizer"];
  EXPECT_EQ(got["pre_tokenizer"]["type"], cutter["type"]);
  if (cutter.contains("pretokenizers")) {
    EXPECT_EQ(got["pre_tokenizer"]["pretokenizers"][0], cutter["pretokenizers"][0]);
  }
}

TEST(Tokenizers, OtherRules) {
  const json all = json::parse(ReadAll(Fixture("cases.json")));
  const json base = json::parse(ReadAll(Fixture("gpt2.json")));
  const auto every = all["every"].get<size_t>();
  ASSERT_GE(all["cases"].size(), 30u);
  for (const json& rules : all["cases"]) {
    SCOPED_TRACE(rules["name"].get<std::string>());
    json definition = base;
    for (const auto& [key, value] : rules["changes"].items()) {
      if (key == "model") {
        definition[key].update(value);
      } else {
        definition[key] = value;
      }
    }
    const auto tokenizer = MakeBpeTokenizer(definition.dump(), {.where = rules["name"]});
    int wrong = 0;
    for (size_t i = 0; i < rules["ids"].size() && wrong < 5; ++i) {
      const std::string& line = Lines()[i * every];
      EXPECT_EQ(Encode(*tokenizer, line), rules["ids"][i].get<std::vector<int32_t>>())
          << i * every << ": " << json(line).dump() << wrong++;
    }
  }
}

TEST(Tokenizers, SpecialFrameAndEndOfDocument) {
  const auto llama3 = MakeTokenizer(Fixture("llama3.json").string());
  EXPECT_EQ(llama3->special_frame().before, std::vector<int32_t>{1800});
  EXPECT_TRUE(llama3->special_frame().after.empty());
  EXPECT_EQ(llama3->vocab_size(), 1803);
  EXPECT_EQ(llama3->eod_id(), 0);
  EXPECT_EQ(MakeTokenizer(Fixture("llama3.json").string(), "<|end_of_text|>")->eod_id(), 1801);
  EXPECT_TRUE(MakeTokenizer(Fixture("gpt2.json").string())->special_frame().before.empty());
}

}  // namespace
}  // namespace trireme::data
