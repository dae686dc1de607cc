// `trireme data` as a user calls it: what it prints, and one clear message and exit code for each wrong input.
#include "engine/cli/commands.h"
#include "engine/data/build.h"
#include "tests/unit/data/dataset_files.h"

namespace trireme::data {
namespace {

class DataCli : public ::testing::Test {
 protected:
  DataCli() {
    WriteAll(folder_ / "text.txt", "In the beginning\nGod created\n\nthe heaven\n\nand the earth.\n\nAnd the earth\n");
    prefix_ = (folder_ / "text").string();
  }
  // Standard output of a run that must succeed.
  std::string Run(const std::vector<std::string>& words) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    int code = -1;
    std::string thrown;
    try {
      code = cli::RunData(words);
    } catch (const Error& error) {
      thrown = error.what();
    }
    err_ = ::testing::internal::GetCapturedStderr();
    const std::string out = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(code, 0) << thrown;
    return out;
  }
  void Build() { Run({"build", "--input", (folder_ / "text.txt").string(), "--output", prefix_}); }
  // A run that must fail with this id and exit code; returns the message.
  std::string Fails(const std::vector<std::string>& words, const std::string& id, int exit_code) {
    const Error error = ErrorOf([&] { cli::RunData(words); });
    EXPECT_EQ(error.id(), id) << error.what();
    EXPECT_EQ(ExitCode(error.code()), exit_code) << error.what();
    EXPECT_FALSE(error.fix().empty()) << error.what();
    return error.what();
  }

  TestFolder folder_;
  std::string prefix_, err_;
};

TEST_F(DataCli, BuildInfoVerifyBigram) {
  const std::string built =
      Run({"build", "--input", (folder_ / "text.txt").string(), "--output=" + prefix_, "--workers", "2"});
  ExpectContains(built, {"4 documents", "69 tokens"});
  ExpectContains(err_, {"MB/s", "ETA"});
  ExpectContains(Run({"info", prefix_}),
                 {"documents         4 (0 empty)", "69 of uint16", "longest document  29 tokens",
                  "ids               10 to 256", "byte, vocabulary 257"});
  ExpectContains(Run({"verify", prefix_}), {"4 documents", "vocabulary of 257"});
  ExpectContains(Run({"bigram", prefix_, "--split", "75,25,0"}), {"nats per token on 13 held-out tokens"});
  ExpectContains(Run({"bigram", prefix_, "--holdout_percent", "25", "--seq-length", "5"}),
                 {"10 held-out tokens", "split 75,25,0"});
  ExpectContains(Run({"--help"}), {"build", "jsonl", "--holdout-percent", "--seq-length"});
}

// A missing file is named, and so is a short one, with both sizes; the long phase shows how far it is.
TEST_F(DataCli, OBS_07_NameSizeReasonAndProgress) {
  Build();
  ExpectContains(err_, {"tokenising: ", " of ", "MB/s, ETA "});
  ExpectContains(Fails({"info", (folder_ / "none").string()}, "DAT017", 65), {(folder_ / "none").string()});
  std::filesystem::resize_file(prefix_ + ".bin", 100);
  ExpectContains(Fails({"info", prefix_}, "DAT003", 65), {prefix_, "100 bytes", "138 bytes"});
}

TEST_F(DataCli, JsonLines) {
  WriteAll(folder_ / "a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  WriteAll(folder_ / "b.jsonl", "{\"text\": \"three\"}\n");
  const std::vector<std::string> inputs = {"--input", (folder_ / "a.jsonl").string(), (folder_ / "b.jsonl").string(),
                                           "--format", "jsonl"};
  std::vector<std::string> words = {"build", "--output", prefix_};
  words.insert(words.end(), inputs.begin(), inputs.end());
  ExpectContains(Run(words), {"3 documents", "14 tokens"});
  ExpectContains(Fails({"build", "--input", (folder_ / "text.txt").string(), "--output", prefix_, "--format", "jsonl"},
                       "DAT011", 65),
                 {"text.txt:1", "invalid JSON"});
}

TEST_F(DataCli, TrainsATokeniserAndUsesIt) {
  const std::string tokenizer = (folder_ / "tokenizer.json").string(), input = (folder_ / "text.txt").string();
  ExpectContains(Run({"train-tokenizer", "--input", input, "--vocab-size", "262", "--output", tokenizer, "--pattern",
                      "qwen2", "--special-tokens", "<|endoftext|>", "<|im_end|>", "--workers", "2"}),
                 {"262 tokens"});
  ExpectContains(Run({"train-tokenizer", "--input", input, "--vocab-size", "5000", "--output", tokenizer}),
                 {"5,000 tokens were wanted"});
  ExpectContains(Run({"tokenize", "--input", input, "--output", prefix_, "--tokenizer", tokenizer}), {"4 documents"});
  ExpectContains(Run({"info", prefix_}), {"bpe, vocabulary", "end of document 0"});
  ExpectContains(Run({"verify", prefix_}), {"4 documents"});
  const int64_t with_eod = IndexedDataset(prefix_).num_tokens();
  Run({"build", "--input", input, "--output", prefix_, "--tokenizer", tokenizer, "--no-append-eod"});
  EXPECT_EQ(IndexedDataset(prefix_).num_tokens(), with_eod - 4);
  Fails({"build", "--input", input, "--output", prefix_, "--tokenizer", tokenizer, "--eod-token", "none"}, "DAT025",
        65);
  Fails({"build", "--input", input, "--output", prefix_, "--append-eod", "--no-append-eod"}, "DAT015", 2);
  Fails({"build", "--input", input, "--output", prefix_, "--tokenizer", "byte", "--vocab-file", "v"}, "DAT015", 2);
  Fails({"build", "--input", input, "--output", prefix_, "--vocab-file", "v"}, "DAT015", 2);
  Fails({"train-tokenizer", "--input", input, "--vocab-size", "9", "--output", tokenizer}, "DAT026", 2);
  Fails({"train-tokenizer", "--input", input, "--vocab-size", "900", "--pattern", "x", "--output", tokenizer}, "DAT026",
        2);
}

TEST_F(DataCli, JsonKeysMakeADatasetEach) {
  WriteAll(folder_ / "a.jsonl", "{\"title\": \"one\", \"body\": \"two three\"}\n");
  const std::string input = (folder_ / "a.jsonl").string();
  Run({"build", "--input", input, "--output", prefix_, "--json-keys", "title", "body"});
  EXPECT_EQ(IndexedDataset(prefix_ + "_title").num_tokens(), 4);
  EXPECT_EQ(IndexedDataset(prefix_ + "_body").num_tokens(), 10);
  ExpectContains(Fails({"build", "--input", input, "--output", prefix_}, "DAT011", 65), {"no field \"text\""});
  Fails({"build", "--input", input, (folder_ / "text.txt").string(), "--output", prefix_}, "DAT015", 2);
  Fails({"build", "--input", (folder_ / "text.txt").string(), "--output", prefix_, "--json-keys", "a"}, "DAT015", 2);
}

TEST_F(DataCli, WrongInputs) {
  Build();
  Fails({}, "DAT015", 2);
  ExpectContains(Fails({"biuld"}, "DAT015", 2), {"did you mean build?"});
  ExpectContains(Fails({"build", "--ouput", "x"}, "DAT015", 2), {"did you mean --output?"});
  ExpectContains(Fails({"build", "--output", prefix_}, "DAT015", 2), {"--input is missing"});
  ExpectContains(Fails({"build", "--input"}, "DAT015", 2), {"--input has no value"});
  Fails({"build", "--input", "x", "--output", "a", "--output", "b"}, "DAT015", 2);
  Fails({"build", "--input", "x", "--output", "y", "--workers", "none"}, "DAT015", 2);
  Fails({"build", "--input", "x", "--output", "y", "--format", "xml"}, "DAT015", 2);
  Fails({"build", "--input", (folder_ / "text.txt").string(), "--output", prefix_, "--tokenizer", "words"}, "DAT014",
        2);
  Fails({"build", "--input", (folder_ / "none.txt").string(), "--output", prefix_}, "DAT017", 65);
  Fails({"build", "--input", (folder_ / "text.txt").string(), "--output", (folder_ / "no/such").string()}, "DAT012",
        65);
  WriteAll(folder_ / "empty.txt", "");
  Fails({"build", "--input", (folder_ / "empty.txt").string(), "--output", (folder_ / "e").string()}, "DAT010", 65);
  Fails({"info"}, "DAT015", 2);
  Fails({"info", (folder_ / "none").string()}, "DAT017", 65);
  ExpectContains(Fails({"verify", prefix_, "--vocab-size", "200"}, "DAT006", 65),
                 {"token id 256", "document 0, position 28"});
  Fails({"bigram", prefix_, "--split", "1,x"}, "DAT007", 2);
  Fails({"bigram", prefix_, "--split", "1", "--holdout-percent", "5"}, "DAT015", 2);
  Fails({"bigram", prefix_, "--split", "1"}, "DAT008", 65);
  std::filesystem::resize_file(prefix_ + ".bin", 100);
  ExpectContains(Fails({"info", prefix_}, "DAT003", 65), {"100 bytes", "138 bytes"});
  WriteAll(prefix_ + ".idx", "no index");
  Fails({"verify", prefix_}, "DAT001", 65);
}

}  // namespace
}  // namespace trireme::data
