// What `trireme train` says of memory: planned beside measured at its end, and what to change where it does not fit.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/train/train_command.h"

namespace trireme::testing {
namespace {

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// As a shell takes them apart, without quotes.
std::vector<std::string> Words(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

TEST(TrainMemory, IsToldAtTheEndAndWhatWouldFitIsNamedWithACommandThatSaysSo) {
  const TinyJob job;
  const std::vector<std::string> flags = {"--train-iters",      "2", "--eval-interval", "0",
                                          "--micro-batch-size", "4", "--log-json",      job.Path("log.jsonl")};
  job.WriteConfig("four.json", R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}})");
  const Outcome run = RunTrireme(job.Train(2, flags, "four.json"));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(Contains(run.err, "memory of rank 0")) << run.err;
  EXPECT_TRUE(Contains(run.err, "planned    measured")) << run.err;
  std::ifstream file(job.Path("log.jsonl"));
  std::vector<nlohmann::json> steps;
  for (std::string line; std::getline(file, line);) steps.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_FALSE(steps[0].contains("account"));
  const nlohmann::json &planned = steps[1]["account"]["planned"], &measured = steps[1]["account"]["measured"];
  for (const char* memory_class : {"weights", "gradients", "moments"}) {
    EXPECT_EQ(planned[memory_class], measured[memory_class]) << memory_class;
  }
  EXPECT_GT(measured["total"], planned["total"]) << "the program and its libraries are resident too";

  // One byte less than it takes: refused at once, on all ranks with one message.
  std::vector<std::string> less = flags;
  less.insert(less.end(),
              {"--device-memory-gib", fmt::format("{:.12f}", (planned["total"].get<double>() - 1) / (1 << 30))});
  const Outcome refused = RunTrireme(job.Train(2, less, "four.json"));
  EXPECT_EQ(refused.code, 71) << refused.err;
  EXPECT_TRUE(Contains(refused.err, "error TRN060: rank 0: does not fit, and nothing was allocated")) << refused.err;
  const size_t check = refused.err.find("check: trireme plan ");
  ASSERT_NE(check, std::string::npos) << refused.err;
  const size_t begin = check + std::string("check: trireme ").size();
  const Outcome plan = RunTrireme(Words(refused.err.substr(begin, refused.err.find('\n', begin) - begin)));
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_TRUE(Contains(plan.out, "= 2 (micro)") || Contains(plan.out, "made again")) << plan.out;
}

TEST(TrainMemory, MEM_01_AHostThatIsTooSmallIsNamedBeforeTheRun) {
  const TinyJob job;
  const Outcome refused = RunTrireme(job.Train(2, {"--train-iters", "2", "--host-memory-gib", "0.0001"}));
  EXPECT_EQ(refused.code, 69) << refused.err;
  EXPECT_TRUE(Contains(refused.err, "error TRN061")) << refused.err;
  EXPECT_TRUE(Contains(refused.err, "the 2 ranks of this host need")) << refused.err;
}

}  // namespace
}  // namespace trireme::testing
