#include "engine/data/tokenizer.h"

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

}  // namespace
}  // namespace trireme::data
