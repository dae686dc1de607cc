#include "engine/data/tokenizer.h"

#include <nlohmann/json.hpp>

#include "engine/data/bpe/bpe_tokenizer.h"
#include "engine/data/bpe/pattern.h"
#include "engine/data/bpe/tokenizer_json.h"
#include "engine/data/bpe/train.h"
#include "engine/data/bpe/unicode.h"

#include "tests/unit/data/dataset_files.h"

namespace trireme::data {
namespace {

TEST(Tokenizer, BytesRoundTrip) {
  const auto tokenizer = MakeTokenizer("byte");
  std::string text;
  for (int c = 0; c < 256; ++c) text += static_cast<char>(c);
  std::vector<int32_t> ids = {256};
  tokenizer->Encode(text, ids);
  ASSERT_EQ(ids.size(), 257u);
  EXPECT_EQ(ids[1], 0);
  EXPECT_EQ(ids[256], 255);
  EXPECT_EQ(tokenizer->Decode(std::span(ids).subspan(1)), text);
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{'a', tokenizer->eod_id(), 'b'}), "a\n\nb");
  EXPECT_EQ(ErrorOf([&] { tokenizer->Decode(std::vector<int32_t>{257}); }).id(), "DAT006");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
}

TEST(Tokenizer, DescriptionBesideTheDataset) {
  const TestFolder folder;
  EXPECT_EQ(LoadTokenizer(folder / "a"), nullptr);
  SaveTokenizer(*MakeTokenizer("byte"), folder / "a");
  EXPECT_EQ(LoadTokenizer(folder / "a")->name(), "byte");
  EXPECT_EQ(LoadTokenizer(folder / "a.idx")->vocab_size(), 257);
  for (const char* damaged :
       {"", "{", "[]", "{\"tokenizer\": 3}", "{\"tokenizer\": \"byte\"}",
        "{\"tokenizer\": \"byte\", \"vocab_size\": 9}", "{\"tokenizer\": \"pair\", \"vocab_size\": 257}"}) {
    WriteAll(folder / "a.tokenizer.json", damaged);
    const Error error = ErrorOf([&] { LoadTokenizer(folder / "a"); });
    EXPECT_EQ(error.id(), "DAT014") << damaged;
    EXPECT_EQ(error.code(), ErrorCode::kData) << damaged;
  }
  EXPECT_EQ(ErrorOf([] { MakeTokenizer("words"); }).code(), ErrorCode::kUsage);
}

using nlohmann::json;

// A tokenizer.json of the family with the 256 bytes, an end of document (256) and the merges of " the".
json SmallBpe(const std::string& family = "gpt2") {
  nlohmann::ordered_json rules = FamilyJson(family);
  std::vector<std::pair<std::string, int64_t>> vocabulary;
  for (int b = 0; b < 256; ++b) vocabulary.emplace_back(SymbolsOfBytes(std::string(1, static_cast<char>(b))), b);
  for (const char* token : {"<|endoftext|>", "th", "the", "Ġthe"})
    vocabulary.emplace_back(token, std::ssize(vocabulary));
  rules["added_tokens"].push_back(SpecialTokenJson("<|endoftext|>", 256));
  return json::parse(TokenizerText(rules, vocabulary, {{"t", "h"}, {"th", "e"}, {"Ġ", "the"}}));
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.Encode(text, ids);
  return ids;
}

TEST(Bpe, MergesInOrderAndKeepsInvalidBytes) {
  const auto tokenizer = MakeBpeTokenizer(SmallBpe().dump(), {});
  EXPECT_EQ(tokenizer->vocab_size(), 260);
  EXPECT_EQ(tokenizer->eod_id(), 256);
  EXPECT_EQ(Ids(*tokenizer, "the the t<|endoftext|>"), (std::vector<int32_t>{258, 259, ' ', 't', 256}));
  const std::string wild = "the\xff\xfe the \xe2\x82 \xc0\xaf\xed\xa0\x80";
  const auto ids = Ids(*tokenizer, wild);
  EXPECT_EQ(ids[0], 258);
  EXPECT_EQ(ids[1], 0xff);
  EXPECT_EQ(tokenizer->Decode(ids), wild);
  EXPECT_EQ(Ids(*tokenizer, ""), std::vector<int32_t>{});
  EXPECT_EQ(ErrorOf([&] { tokenizer->Decode(std::vector<int32_t>{260}); }).id(), "DAT006");
}

TEST(Bpe, LongPiecesMergeLikeShortOnes) {
  // Above 64 symbols a heap does what scanning does below; "ththth" has its pairs in every place.
  const auto tokenizer = MakeBpeTokenizer(SmallBpe().dump(), {});
  std::string text;
  std::vector<int32_t> want;
  for (int i = 0; i < 200; ++i) {
    text += i % 3 ? "th" : "the";
    want.push_back(i % 3 ? 257 : 258);
  }
  EXPECT_EQ(Ids(*tokenizer, text), want);
  EXPECT_EQ(Ids(*tokenizer, text.substr(0, 14)), (std::vector<int32_t>{258, 257, 257, 258, 257, 257}));
}

TEST(Bpe, DescriptionBesideTheDatasetHoldsTheTokeniser) {
  const TestFolder folder;
  WriteAll(folder / "tokenizer.json", SmallBpe("qwen2").dump());
  const auto made = MakeTokenizer((folder / "tokenizer.json").string());
  SaveTokenizer(*made, folder / "a");
  const auto info = LoadTokenizerInfo(folder / "a");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->name, "bpe");
  EXPECT_EQ(info->vocab_size, 260);
  EXPECT_EQ(info->eod_id, 256);
  const auto loaded = LoadTokenizer(folder / "a");
  EXPECT_EQ(Ids(*loaded, "the e\u0301"), Ids(*made, "the \u00e9"));
  EXPECT_EQ(json::parse(loaded->definition()), json::parse(made->definition()));
  EXPECT_EQ(MakeTokenizer((folder / "a.tokenizer.json").string())->vocab_size(), 260);
  EXPECT_EQ(LoadTokenizerInfo(folder / "none"), std::nullopt);

  std::string text = ReadAll(folder / "a.tokenizer.json");
  text.replace(text.find("260"), 3, "261");
  WriteAll(folder / "a.tokenizer.json", text);
  EXPECT_EQ(ErrorOf([&] { LoadTokenizer(folder / "a"); }).id(), "DAT014");
  WriteAll(folder / "a.tokenizer.json", text.substr(0, text.size() / 2));
  EXPECT_EQ(ErrorOf([&] { LoadTokenizer(folder / "a"); }).id(), "DAT014");
}

TEST(Bpe, FoldersAndTheOlderPairOfFiles) {
  const TestFolder folder;
  const json small = SmallBpe();
  WriteAll(folder / "vocab.json", small["model"]["vocab"].dump());
  WriteAll(folder / "merges.txt", "#version: 0.2\nt h\nth e\r\nĠ the\n");
  const auto tokenizer = MakeTokenizer((folder / "").string());
  EXPECT_EQ(Ids(*tokenizer, "the the"), (std::vector<int32_t>{258, 259}));
  EXPECT_EQ(tokenizer->eod_id(), 256);
  WriteAll(folder / "merges.txt", "#version: 0.2\nt h e\n");
  EXPECT_EQ(ErrorOf([&] { MakeTokenizer((folder / "").string()); }).id(), "DAT022");

  json other = small;
  other["model"]["vocab"]["</s>"] = 260;
  WriteAll(folder / "tokenizer.json", other.dump());
  EXPECT_EQ(MakeTokenizer((folder / "").string())->eod_id(), 256);
  WriteAll(folder / "tokenizer_config.json", R"({"eos_token": {"content": "</s>"}})");
  EXPECT_EQ(MakeTokenizer((folder / "").string())->eod_id(), 260);
  EXPECT_EQ(MakeTokenizer((folder / "").string(), "th")->eod_id(), 257);
  EXPECT_EQ(ErrorOf([&] { MakeTokenizer((folder / "").string(), "no such"); }).id(), "DAT025");
  EXPECT_EQ(ErrorOf([&] { MakeTokenizer("byte", "th"); }).id(), "DAT025");
}

TEST(Bpe, RefusesByName) {
  const auto error_of = [](const std::function<void(json&)>& change) {
    json file = SmallBpe("llama3");
    change(file);
    const Error error = ErrorOf([&] { MakeBpeTokenizer(file.dump(), {.where = "x.json"}); });
    EXPECT_EQ(error.code(), ErrorCode::kData);
    return error.id() + " " + error.what();
  };
  const auto refuses = [&](const std::vector<std::string>& parts, const std::function<void(json&)>& change) {
    ExpectContains(error_of(change), parts);
  };
  refuses({"DAT023", "WordPiece", "BPE"}, [](json& f) { f["model"]["type"] = "WordPiece"; });
  refuses({"DAT023", "normalizer", "Prepend", "NFC"}, [](json& f) { f["normalizer"]["type"] = "Prepend"; });
  refuses({"DAT023", "normalizers[1]", "Replace"}, [](json& f) {
    f["normalizer"] = json::parse(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace"}]})");
  });
  refuses({"DAT023", "Metaspace"}, [](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["type"] = "Metaspace"; });
  refuses({"DAT023", "no ByteLevel"}, [](json& f) { f["pre_tokenizer"] = nullptr; });
  refuses({"DAT023", "after ByteLevel"}, [](json& f) {
    f["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}});
  });
  refuses({"DAT023", "BertProcessing"}, [](json& f) { f["post_processor"]["type"] = "BertProcessing"; });
  refuses({"DAT023", "the decoder Fuse"}, [](json& f) { f["decoder"]["type"] = "Fuse"; });
  refuses({"DAT023", "dropout"}, [](json& f) { f["model"]["dropout"] = 0.1; });
  refuses({"DAT023", "continuing_subword_prefix", "##"},
          [](json& f) { f["model"]["continuing_subword_prefix"] = "##"; });
  refuses({"DAT023", "version", "2.0"}, [](json& f) { f["version"] = "2.0"; });
  refuses({"DAT023", "byte 0x61"}, [](json& f) { f["model"]["vocab"].erase("a"); });
  refuses({"DAT022", "\"model\" is missing"}, [](json& f) { f.erase("model"); });
  refuses({"DAT022", "model.vocab", "object"}, [](json& f) { f["model"]["vocab"] = 3; });
  refuses({"DAT022", "is given to two tokens"}, [](json& f) { f["model"]["vocab"]["zz"] = 7; });
  refuses({"DAT022", "is no id"}, [](json& f) { f["model"]["vocab"]["zz"] = -7; });
  refuses({"DAT022", "model.merges[3]", "not in the vocabulary"},
          [](json& f) { f["model"]["merges"].push_back("a b"); });
  refuses({"DAT022", "model.merges[3]", "two tokens"}, [](json& f) { f["model"]["merges"].push_back("ab"); });
  refuses({"DAT022", "added_tokens[0].id"}, [](json& f) { f["added_tokens"][0]["id"] = "x"; });
  refuses({"DAT022", "300 here and 256"}, [](json& f) { f["added_tokens"][0]["id"] = 300; });
  refuses({"DAT022", "add_prefix_space"},
          [](json& f) { f["pre_tokenizer"]["pretokenizers"][1].erase("add_prefix_space"); });
  refuses({"DAT025"}, [](json& f) {
    f["model"]["vocab"].erase("<|endoftext|>");
    f["added_tokens"].clear();
  });
  const auto pattern = [&](const char* text, const char* what) {
    refuses({"DAT023", what, "x.json"},
            [&](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = text; });
  };
  pattern("a*", "empty text");
  pattern("(a", "not understood");
  pattern("\\bx", "\\b");
  pattern("[a&&b]", "intersects");
  pattern("[[:alpha:]]", "class inside a class");
  pattern("a{1,2}+", "{n,m}+");
  pattern("(?s)a", "(?s)");
  pattern("(*UTF)a", "verb");
  pattern("a\\", "backslash");
  EXPECT_EQ(ErrorOf([] { MakeBpeTokenizer("{", {}); }).id(), "DAT022");
}

TEST(Bpe, PatternsMeanWhatOnigurumaMeans) {
  const auto all = [](const char* pattern, const std::string& text) {
    const Pattern compiled = Pattern::Regex(pattern, "test");
    Matcher memory;
    std::vector<std::string> out;
    Match match;
    for (size_t at = 0; compiled.Find(text, at, memory, match); at = match.end)
      out.push_back(text.substr(match.begin, match.end - match.begin));
    return out;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(all("\\s", "a \t\u0085\u180e\u3000b"), (Texts{" ", "\t", "\u0085", "\u3000"}));  // U+180E is none
  EXPECT_EQ(all("\\S+", "a\u180eb c"), (Texts{"a\u180eb", "c"}));
  EXPECT_EQ(all("\\w+", "a\u0301b\u203fc-1"), (Texts{"a\u0301b\u203fc", "1"}));
  EXPECT_EQ(all("\\h+", "xFF0g"), (Texts{"FF0"}));
  EXPECT_EQ(all("^x$", "x\nx"), (Texts{"x", "x"}));
  EXPECT_EQ(all("(?i:'s)", "'S'\u017f"), (Texts{"'S", "'\u017f"}));
  EXPECT_EQ(all("\\p{Han}", "\u4e00\u3001\u30fc"), (Texts{"\u4e00"}));  // the script, not its extensions
}

TEST(Bpe, TrainingOptionsAndBreaksOfTies) {
  const TestFolder folder;
  const auto train = [&](const std::string& text, int64_t size) {
    WriteAll(folder / "a.txt", text);
    TrainTokenizerOptions options{.inputs = {folder / "a.txt"}, .vocab_size = size};
    return json::parse(TrainTokenizer(options, [](TrainPhase, int64_t, int64_t) {}))["model"]["merges"];
  };
  // "cd" and "ab" are equally frequent: the smaller ids first. No third pair is left.
  EXPECT_EQ(train("cd\n\nab\n\nab\n\ncd", 300), json::parse(R"([["a", "b"], ["c", "d"]])"));
  EXPECT_EQ(train("cd\n\nab\n\nab\n\ncd", 258), json::parse(R"([["a", "b"]])"));
  EXPECT_EQ(train("aaaa", 300), json::parse(R"([["a", "a"], ["aa", "aa"]])"));
  const auto fails = [&](TrainTokenizerOptions options) {
    options.inputs = {folder / "a.txt"};
    return ErrorOf([&] { TrainTokenizer(options, [](TrainPhase, int64_t, int64_t) {}); }).id();
  };
  EXPECT_EQ(fails({.inputs = {}, .vocab_size = 256}), "DAT026");
  EXPECT_EQ(fails({.inputs = {}, .vocab_size = 300, .family = "gpt3"}), "DAT026");
  EXPECT_EQ(fails({.inputs = {}, .vocab_size = 300, .special_tokens = {"x", "x"}}), "DAT026");
  WriteAll(folder / "a.txt", "\n\n");
  EXPECT_EQ(fails({.inputs = {}, .vocab_size = 300}), "DAT010");
}

TEST(Bpe, CompleteUtf8HoldsBackHalfCharacters) {
  const std::string smile = "\xf0\x9f\x98\x80";
  EXPECT_EQ(CompleteUtf8(""), 0u);
  EXPECT_EQ(CompleteUtf8("ab"), 2u);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(CompleteUtf8("a" + smile.substr(0, i)), 1u) << i;
  EXPECT_EQ(CompleteUtf8("a" + smile), 5u);
  EXPECT_EQ(CompleteUtf8("a\x80\x80\x80\x80"), 5u);  // invalid: nothing to wait for
}

}  // namespace
}  // namespace trireme::data
