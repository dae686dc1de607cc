// `trireme generate` as a user sees it: texts and ids of a trained checkpoint and of Hugging Face folders, wrong
// inputs, and output that cannot be written.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "tests/cli/train/train_command.h"

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;

const fs::path kFixtures = TRIREME_FIXTURES;
constexpr size_t kPrompt = 24;

std::string Text(std::span<const int64_t> ids, const char* separator) {
  std::string text;
  for (const int64_t id : ids) text += (text.empty() ? "" : separator) + std::to_string(id);
  return text;
}

std::vector<int64_t> GreedyOf(const std::string& name) {
  const auto reader = checkpoint::CheckpointReader::Open(kFixtures / name / "expected.safetensors");
  std::vector<int64_t> ids(64);
  reader->ReadFlat("greedy", "model", 0, 64, std::as_writable_bytes(std::span(ids)));
  return ids;
}

std::vector<std::string> GenerateIds(const fs::path& folder, std::span<const int64_t> prompt) {
  return {"generate",      "--load", folder.string(),    "--device", "cpu",  "--prompt-ids", Text(prompt, ","),
          "--temperature", "0",      "--max-new-tokens", "40",       "--ids"};
}

void ExpectError(const std::vector<std::string>& words, int code, const std::vector<std::string>& parts) {
  const Outcome outcome = RunTrireme(words);
  EXPECT_EQ(outcome.code, code) << outcome.err;
  for (const std::string& part : parts)
    EXPECT_NE(outcome.err.find(part), std::string::npos) << "missing: " << part << "\nin: " << outcome.err;
}

Outcome RunShell(const std::string& line) { return Command("/bin/sh", {"-c", line}).Wait(); }

// A folder like `name` whose config.json ends texts with the token `eos`.
void CopyWithEnd(const std::string& name, const fs::path& to, int64_t eos) {
  fs::copy(kFixtures / name, to);
  std::ifstream in(to / "config.json");
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const size_t key = text.find("\"eos_token_id\": "), end = text.find(',', key);
  text.replace(key, end - key, "\"eos_token_id\": " + std::to_string(eos));
  std::ofstream(to / "config.json") << text;
}

TEST(Generate, IdsOfAHuggingFaceFolder) {
  for (const char* name : {"llama", "gpt_neox"}) {  // in shards, and in one file
    const std::vector<int64_t> greedy = GreedyOf(name);
    std::vector<std::string> words = GenerateIds(kFixtures / name, std::span(greedy).first(kPrompt));
    words.push_back("--ignore-eos");
    const std::string want = Text(std::span(greedy).subspan(kPrompt), " ") + "\n";
    const Outcome outcome = RunTrireme(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, want) << name;
    words.push_back("--no-kv-cache");
    EXPECT_EQ(RunTrireme(words).out, want) << name;
  }
}

TEST(Generate, StopsAtTheEndOfTheText) {
  const TempFolder temp;
  const std::vector<int64_t> greedy = GreedyOf("qwen2");
  const auto added = std::span(greedy).subspan(kPrompt);
  const int64_t eos = added[9];
  const auto length = static_cast<size_t>(std::ranges::find(added, eos) - added.begin());
  CopyWithEnd("qwen2", temp.path() / "model", eos);
  const Outcome outcome = RunTrireme(GenerateIds(temp.path() / "model", std::span(greedy).first(kPrompt)));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, Text(added.first(length), " ") + "\n");
}

TEST(Generate, TextsOfATrainedCheckpoint) {
  const TinyJob job;
  const Outcome trained = RunTrireme(job.Train(2, {"--train-iters", "2", "--save", job.Path("ckpt")}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  std::vector<std::string> words = {"generate", "--load",       job.Path("ckpt"), "--max-new-tokens",
                                    "50",       "--ignore-eos", "--top-k",        "40",
                                    "--top-p",  "0.95"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return RunTrireme(all);
  };
  const Outcome text = with({"--prompt", "And é "});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(text.out.starts_with("And é ")) << text.out;
  EXPECT_EQ(with({"--prompt", "And é "}).out, text.out);  // the same seed
  EXPECT_NE(with({"--prompt", "And é ", "--seed", "7"}).out, text.out);
  EXPECT_NE(text.err.find("more than the context of 32"), std::string::npos) << text.err;

  std::ofstream(job.Path("prompts.txt")) << "And é \nthe oars\n";
  const Outcome both = with({"--prompt-file", job.Path("prompts.txt")});
  EXPECT_TRUE(both.out.starts_with(text.out)) << both.out;
  EXPECT_EQ(both.out.substr(std::min(both.out.size(), text.out.size())).rfind("the oars", 0), 0u) << both.out;
  const Outcome ids = with({"--prompt", "And é ", "--ids"});
  std::istringstream in(ids.out);
  EXPECT_EQ(std::distance(std::istream_iterator<int>(in), {}), 50) << ids.out;
  EXPECT_EQ(with({"--prompt", "And é ", "--dtype", "bf16", "--temperature", "0"}).code, 0);
  ExpectError({"generate", "--load", job.Path("ckpt"), "--tokenizer", (job.folder() / "absent").string()}, 2,
              {"DAT014", "absent"});
}

TEST(Generate, WrongFlags) {
  const std::string llama = (kFixtures / "llama").string();
  ExpectError({"generate", "--load", llama, "--prompt-ids", "1,103"}, 65, {"GEN002", "103", "--tokenizer"});
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> wrong = {
      {{"--prompt-ids", "1,103"}, {"USE002", "\"103\"", "0 to 102"}},
      {{"--prompt-ids", "1,,2"}, {"USE002", "\"\"", "--prompt-ids"}},
      {{"--prompt-ids", "1", "--prompt", "a"}, {"USE002", "give one of them"}},
      {{"--prompt-ids", "1", "--top-p", "0"}, {"USE002", "--top-p"}},
      {{"--prompt-ids", "1", "--top-p", "1.5"}, {"USE002", "1.5"}},
      {{"--prompt-ids", "1", "--temperature", "-1"}, {"USE002", "--temperature", "-1"}},
      {{"--prompt-ids", "1", "--context", "65"}, {"USE002", "--context", "65", "64 positions"}},
      {{"--prompt-ids", "1", "--dtype", "int8"}, {"USE002", "int8", "fp32, bf16 or fp16"}},
      {{"--prompt-ids", "1", "--device", "tpu"}, {"USE002", "tpu", "cpu or cuda"}},
      {{"--prompt-ids", "1", "--top-q", "1"}, {"USE001", "--top-"}}};
  for (const auto& [flags, parts] : wrong) {
    std::vector<std::string> words = {"generate", "--load", llama, "--ids"};
    words.insert(words.end(), flags.begin(), flags.end());
    ExpectError(words, 2, parts);
  }
}

TEST(Generate, WrongFolders) {
  const TempFolder temp;
  ExpectError({"generate", "--load", temp.path().string(), "--prompt", "x"}, 65, {"CKP001", temp.path().string()});
  fs::copy(kFixtures / "gpt2" / "model.safetensors", temp.path());
  ExpectError({"generate", "--load", temp.path().string(), "--prompt", "x"}, 65, {"GEN001", "config.json"});
  fs::copy(kFixtures / "qwen2" / "config.json", temp.path());
  ExpectError({"generate", "--load", temp.path().string(), "--prompt-ids", "1", "--ids"}, 65, {"CKP019", "fix:"});
  ExpectError({"generate", "--load", (kFixtures / "gpt2").string(), "--prompt", "x", "--tokenizer", "byte"}, 65,
              {"GEN003", "101", "257"});
  ExpectError({"launch", "--cpu", "--num_gpus", "2", "generate", "--load", "x", "--prompt", "x"}, 2,
              {"GEN005", "2 ranks"});
}

TEST(Output, FullOrClosedIsAnError) {
  const std::vector<int64_t> greedy = GreedyOf("gpt2");
  std::string generate = kTrireme;
  for (const std::string& word : GenerateIds(kFixtures / "gpt2", std::span(greedy).first(kPrompt)))
    generate += " '" + word + "'";
  for (const std::string& command :
       {generate, kTrireme + " plan --help", kTrireme + " data --help", kTrireme + " --help"}) {
    const Outcome full = RunShell(command + " > /dev/full"), closed = RunShell(command + " >&-");
    EXPECT_EQ(full.code, 69) << command << full.err;
    EXPECT_NE(full.err.find("CLI009"), std::string::npos) << full.err;
    EXPECT_NE(full.err.find("No space left"), std::string::npos) << full.err;
    EXPECT_EQ(closed.code, 69) << command << closed.err;
    EXPECT_NE(closed.err.find("CLI009"), std::string::npos) << closed.err;
    EXPECT_EQ(RunShell(command + " > /dev/null").code, 0) << command;
  }
}

}  // namespace
}  // namespace trireme::testing
