// `trireme eval` as a user sees it: the validation loss of the run that made the checkpoint, the same numbers on one
// rank and on two, bits per byte, wrong inputs.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/train/train_command.h"

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;

const fs::path kFixtures = TRIREME_FIXTURES;

void ExpectError(const std::vector<std::string>& words, int code, const std::vector<std::string>& parts) {
  const Outcome outcome = RunTrireme(words);
  EXPECT_EQ(outcome.code, code) << outcome.err;
  for (const std::string& part : parts)
    EXPECT_NE(outcome.err.find(part), std::string::npos) << "missing: " << part << "\nin: " << outcome.err;
}

nlohmann::json Evaluated(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  const Outcome outcome = RunTrireme(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.code == 0 ? nlohmann::json::parse(outcome.out) : nlohmann::json();
}

TEST(Eval, TheValidationLossOfTheRun) {
  const TinyJob job;
  const Outcome trained = RunTrireme(
      job.Train(2, {"--train-iters", "4", "--eval-interval", "4", "--eval-iters", "0", "--save", job.Path("ckpt")}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string marker = "validation at step 4 | loss ";
  const size_t at = trained.out.find(marker);
  ASSERT_NE(at, std::string::npos) << trained.out;
  const double want = std::stod(trained.out.substr(at + marker.size()));

  const std::vector<std::string> eval = {"eval", "--load", job.Path("ckpt"), "--json", "--data-path", job.Path("text")};
  const nlohmann::json one = Evaluated(eval, {"--split", "90,10,0"});
  EXPECT_NEAR(one["loss"].get<double>(), want, 6e-5);
  EXPECT_NEAR(one["perplexity"].get<double>(), std::exp(one["loss"].get<double>()), 1e-9);
  EXPECT_EQ(one["seq_length"], 32);  // the run's
  EXPECT_EQ(one["tokens"].get<int64_t>(), one["samples"].get<int64_t>() * 32);
  // A byte is a token here, but for the ends of documents.
  const double bytes = one["bytes"].get<double>();
  EXPECT_LE(bytes, one["tokens"].get<double>());
  EXPECT_GT(bytes, one["tokens"].get<double>() * 0.98);
  EXPECT_NEAR(one["bits_per_byte"].get<double>(),
              one["loss"].get<double>() * one["tokens"].get<double>() / std::log(2.0) / bytes, 1e-9);

  std::vector<std::string> launched = {"launch", "--cpu", "--num_gpus", "2"};
  launched.insert(launched.end(), eval.begin(), eval.end());
  const nlohmann::json two = Evaluated(launched, {"--split", "90,10,0", "--micro-batch-size", "3"});
  EXPECT_EQ(two["tokens"], one["tokens"]);
  EXPECT_EQ(two["bytes"], one["bytes"]);
  EXPECT_NEAR(two["loss"].get<double>(), one["loss"].get<double>(), 1e-6);

  const nlohmann::json whole = Evaluated(eval, {}), few = Evaluated(eval, {"--eval-iters", "2"});
  EXPECT_GT(whole["tokens"].get<int64_t>(), 5 * one["tokens"].get<int64_t>());
  EXPECT_EQ(few["samples"], 8);
  const nlohmann::json halves = Evaluated(eval, {"--split", "90,10,0", "--dtype", "bf16"});
  EXPECT_NEAR(halves["loss"].get<double>(), one["loss"].get<double>(), 0.05);
  EXPECT_NE(halves["loss"], one["loss"]);
}

TEST(Eval, ATextIsTokenisedAsOneDocument) {
  const TinyJob job;
  ASSERT_EQ(RunTrireme(job.Train(1, {"--train-iters", "2", "--save", job.Path("ckpt")})).code, 0);
  std::ofstream(job.Path("small.txt")) << "And the 7 oars of the ship: é, and once more.";
  const nlohmann::json text =
      Evaluated({"eval", "--load", job.Path("ckpt"), "--json", "--text", job.Path("small.txt")}, {});
  EXPECT_EQ(text["tokens"], 45);  // 46 bytes, of which the first is not predicted
  EXPECT_EQ(text["bytes"], 45);
  EXPECT_EQ(text["samples"], 2);
  const Outcome lines = RunTrireme({"eval", "--load", job.Path("ckpt"), "--text", job.Path("small.txt")});
  for (const char* word : {"loss", "nats per token", "perplexity", "bits per byte", "45 tokens"})
    EXPECT_NE(lines.out.find(word), std::string::npos) << lines.out;
  std::ofstream(job.Path("one.txt")) << "a";
  ExpectError({"eval", "--load", job.Path("ckpt"), "--text", job.Path("one.txt")}, 65, {"GEN006", "1 tokens"});
}

TEST(Eval, WrongInputs) {
  const TinyJob job;
  const std::string gpt2 = (kFixtures / "gpt2").string(), text = job.Path("text");
  const auto expect = [&](std::vector<std::string> flags, int code, const std::vector<std::string>& parts) {
    flags.insert(flags.begin(), {"eval", "--load", gpt2});
    ExpectError(flags, code, parts);
  };
  ExpectError({"eval", "--data-path", text}, 2, {"USE003", "--load"});
  ExpectError({"eval", "--load", gpt2}, 2, {"USE003", "--data-path PREFIX or --text FILE"});
  expect({"--data-path", text, "--text", "x"}, 2, {"USE003", "both"});
  expect({"--text", "x", "--part", "test"}, 2, {"USE002", "--part"});
  expect({"--data-path", text, "--part", "middle"}, 2, {"USE002", "middle", "train, validation or test"});
  expect({"--data-path", text, "--split", "a,b"}, 2, {"DAT007"});
  expect({"--data-path", text, "--seq-length", "100"}, 2, {"USE002", "100", "64 positions"});
  expect({"--data-path", text, "--micro-batch-size", "0"}, 2, {"USE002", "--micro-batch-size"});
  expect({"--data-path", text}, 65, {"GEN003", "101", "257"});  // made by another tokeniser
  expect({"--text", job.Path("text.txt")}, 65, {"GEN002", "--tokenizer"});
  fs::remove(job.Path("text.tokenizer.json"));
  expect({"--data-path", text}, 65, {"DAT006", "document", "101"});
  expect({"--data-path", text, "--split", "100,0,0", "--part", "test"}, 65, {"GEN006", "0 tokens", "part test"});
  expect({"--data-path", job.Path("absent")}, 65, {"absent.idx"});
  EXPECT_EQ(RunTrireme({"eval", "--help"}).code, 0);
}

}  // namespace
}  // namespace trireme::testing
