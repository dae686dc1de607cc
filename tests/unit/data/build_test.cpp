#include "engine/data/build.h"

#include "engine/data/text_blocks.h"
#include "engine/data/tokenizer.h"
#include "tests/unit/data/dataset_files.h"

namespace trireme::data {
namespace {

std::vector<std::string> Documents(const std::filesystem::path& prefix) {
  const IndexedDataset data(prefix);
  const auto tokenizer = LoadTokenizer(prefix);
  std::vector<std::string> out;
  for (int64_t i = 0; i < data.num_documents(); ++i) {
    std::vector<int32_t> ids(static_cast<size_t>(data.Length(i)));
    data.Read(data.FirstToken(i), ids);
    EXPECT_EQ(ids.back(), tokenizer->eod_id());
    ids.pop_back();
    out.push_back(tokenizer->Decode(ids));
  }
  return out;
}

BuildReport Build(const BuildOptions& options) {
  return BuildDataset(options, [](int64_t, int64_t) {});
}

TEST(Build, AnEmptyLineEndsADocument) {
  const TestFolder folder;
  WriteAll(folder / "a.txt", "\n\nfirst line\nsecond line\n\n\r\n\n third \n\nlast");
  const BuildReport report = Build({.inputs = {folder / "a.txt"}, .output = folder / "a"});
  EXPECT_EQ(Documents(folder / "a"), (std::vector<std::string>{"first line\nsecond line", " third ", "last"}));
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.tokens, 22 + 7 + 4 + 3);
}

TEST(Build, SeveralFilesAndJsonLines) {
  const TestFolder folder;
  WriteAll(folder / "a.jsonl", "{\"text\": \"one\\n\\ntwo\", \"id\": 3}\n\n{\"text\": \"\"}\n");
  WriteAll(folder / "b.jsonl", "{\"text\": \"\\u00e9\"}");
  const BuildReport report =
      Build({.inputs = {folder / "a.jsonl", folder / "b.jsonl"}, .output = folder / "c", .format = TextFormat::kJsonl});
  EXPECT_EQ(Documents(folder / "c"), (std::vector<std::string>{"one\n\ntwo", "\xc3\xa9"}));
  EXPECT_EQ(report.empty_documents, 1);
}

TEST(Build, ProgressEndsAtTheWholeInput) {
  const TestFolder folder;
  WriteAll(folder / "a.txt", "aaa\n\nbbb\n\nccc\n");
  std::vector<int64_t> seen;
  BuildDataset({.inputs = {folder / "a.txt"}, .output = folder / "a", .block_bytes = 4},
               [&](int64_t done, int64_t total) {
                 EXPECT_EQ(total, 14);
                 seen.push_back(done);
               });
  EXPECT_EQ(seen, (std::vector<int64_t>{5, 10, 14}));
}

TEST(Build, JsonErrorsNameFileAndLineInAnyBlock) {
  const TestFolder folder;
  std::string text;
  for (int i = 1; i < 700; ++i) text += "{\"text\": \"fine\"}\n";
  const auto error_with = [&](const std::string& line) {
    WriteAll(folder / "a.jsonl", text + line + "\n{\"text\": \"after\"}\n");
    return ErrorOf([&] {
      Build({.inputs = {folder / "a.jsonl"},
             .output = folder / "a",
             .format = TextFormat::kJsonl,
             .workers = 3,
             .block_bytes = 100});
    });
  };
  for (const char* line :
       {"{\"text\": \"open", "[1]", "{\"body\": \"x\"}", "{\"text\": 5}", "{\"text\": \"\xff\"}", "plain words"}) {
    const Error error = error_with(line);
    EXPECT_EQ(error.id(), "DAT011") << line;
    ExpectContains(error.where(), {"a.jsonl:700"});
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "a.idx"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a.bin"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a.bin.tmp"));
}

TEST(Build, WrongInputs) {
  const TestFolder folder;
  EXPECT_EQ(ErrorOf([&] { Build({.inputs = {folder / "none.txt"}, .output = folder / "a"}); }).id(), "DAT017");
  EXPECT_EQ(ErrorOf([&] { Build({.inputs = {folder / ""}, .output = folder / "a"}); }).id(), "DAT017");
  WriteAll(folder / "empty.txt", "");
  const Error empty = ErrorOf([&] { Build({.inputs = {folder / "empty.txt"}, .output = folder / "a"}); });
  EXPECT_EQ(empty.id(), "DAT010");
  ExpectContains(empty.what(), {"empty.txt", "0 bytes"});
  WriteAll(folder / "blank.txt", "\n\n\r\n");
  EXPECT_EQ(ErrorOf([&] { Build({.inputs = {folder / "blank.txt"}, .output = folder / "a"}); }).id(), "DAT010");
  WriteAll(folder / "a.txt", "text");
  EXPECT_EQ(ErrorOf([&] { Build({.inputs = {folder / "a.txt"}, .output = folder / "no/such/a"}); }).id(), "DAT012");
}

TEST(Build, BlocksEndAtDocuments) {
  const std::string text = "a\nb\n\nc\n\n\nd";
  for (int64_t size = 1; size < 12; ++size) {
    std::string joined;
    for (const TextBlock& block : CutIntoBlocks(text, "f", TextFormat::kText, size)) {
      EXPECT_EQ(static_cast<size_t>(block.offset), joined.size());
      if (block.offset > 0) {
        EXPECT_TRUE(joined.ends_with("\n\n")) << joined;
      }
      joined += block.text;
    }
    EXPECT_EQ(joined, text);
  }
}

}  // namespace
}  // namespace trireme::data
