// What a run says while it trains, against docs/log_json.md.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tests/cli/train/train_command.h"

namespace trireme::testing {
namespace {

// First words of the rows of the table that follows `heading`.
std::set<std::string> DocumentedKeys(const std::string& file, const std::string& heading) {
  std::set<std::string> keys;
  std::ifstream in(file);
  const std::regex row("^\\| `([a-z_]+)` \\|.*");
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("## ")) inside = line == heading;
    std::smatch match;
    if (inside && std::regex_match(line, match, row)) keys.insert(match[1]);
  }
  return keys;
}

std::vector<std::string> LinesWith(const std::string& text, const std::string& word) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.find(word) != std::string::npos) lines.push_back(line);
  }
  return lines;
}

// Two stages: the last alone computes the loss, the first speaks.
const char* const kTwoStages = R"({
  "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "steps_per_print": 2,
  "pipeline_parallel": {"pp_size": 2},
  "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}
})";

class Observed : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    job_ = new TinyJob;
    job_->WriteConfig("pp2.json", kTwoStages);
    run_ =
        new Outcome(RunTrireme(job_->Train(2,
                                           {"--train-iters", "4", "--eval-interval", "0", "--peak-tflops", "0.5",
                                            "--log-level", "warning", "--dump-config", job_->Path("config_out.json"),
                                            "--log-json", job_->Path("log.jsonl"), "--trace", job_->Path("trace.json")},
                                           "pp2.json")));
    std::ifstream file(job_->Path("log.jsonl"));
    steps_ = new std::vector<nlohmann::json>;
    for (std::string line; std::getline(file, line);) steps_->push_back(nlohmann::json::parse(line));
  }
  static void TearDownTestSuite() {
    delete job_;
    delete run_;
    delete steps_;
  }
  void SetUp() override {
    ASSERT_EQ(run_->code, 0) << run_->err;
    ASSERT_EQ(steps_->size(), 4U);
  }
  static TinyJob* job_;
  static Outcome* run_;
  static std::vector<nlohmann::json>* steps_;
};
TinyJob* Observed::job_ = nullptr;
Outcome* Observed::run_ = nullptr;
std::vector<nlohmann::json>* Observed::steps_ = nullptr;

TEST_F(Observed, OBS_01_TokensPerSecondFlopsAndMfuWithThePeakUsed) {
  const std::vector<std::string> lines = LinesWith(run_->out, "step 4/4");
  ASSERT_EQ(lines.size(), 1U) << run_->out;
  const std::regex form(
      ".*\\| [0-9]+ tokens/s, [0-9]+ per rank \\| [0-9.]+ TFLOP/s per rank \\| MFU [0-9.]+ % of 0.5 \\|.*");
  EXPECT_TRUE(std::regex_match(lines[0], form)) << lines[0];
  // Operations of a token: 3 x those of the forward pass, causal attention, tied head; width 32, 2 blocks, and the 257
  // words of the byte tokeniser padded to 384 rows.
  const double h = 32, layers = 2, vocabulary = 384, length = 32;
  const double forward = layers * (2 * 12 * h * h + 2 * length * h) + 2 * vocabulary * h;
  for (const nlohmann::json& step : *steps_) {
    const double rate = step["tokens"].get<double>() / step["seconds"].get<double>();
    EXPECT_DOUBLE_EQ(step["tokens_per_second"].get<double>(), rate);
    EXPECT_DOUBLE_EQ(step["tokens_per_second_per_rank"].get<double>(), rate / 2);
    const double tflops = rate / 2 * 3 * forward / 1e12;
    EXPECT_NEAR(step["tflops_per_rank"].get<double>(), tflops, 1e-9 * tflops);
    EXPECT_EQ(step["peak_tflops"], 0.5);
    EXPECT_DOUBLE_EQ(step["mfu"].get<double>(), step["tflops_per_rank"].get<double>() / 0.5);
  }
}

TEST_F(Observed, OBS_03_TheLossReachesTheFirstStage) {
  for (const nlohmann::json& step : *steps_) {
    EXPECT_GT(step["loss"].get<double>(), 1);
    EXPECT_LT(step["loss"].get<double>(), 7);
  }
  const std::string shown = LinesWith(run_->out, "step 4/4").at(0);
  EXPECT_NE(shown.find("loss " + fmt::format("{:.4f}", (*steps_)[3]["loss"].get<double>())), std::string::npos)
      << shown;
}

TEST_F(Observed, OBS_04_OneLinePerInterval) {
  EXPECT_EQ(LinesWith(run_->out, "step ").size(), 2U) << run_->out;            // steps_per_print 2, of 4 steps
  EXPECT_TRUE(LinesWith(run_->err, "planned per rank").empty()) << run_->err;  // said at level info
}

TEST_F(Observed, OBS_04_TheConfigGoesToAFile) {
  const nlohmann::json dumped = nlohmann::json::parse(std::ifstream(job_->Path("config_out.json")));
  const auto row =
      std::ranges::find_if(dumped, [](const auto& entry) { return entry["key"] == "optimizer.params.lr"; });
  ASSERT_NE(row, dumped.end());
  EXPECT_EQ((*row)["value"], "0.003");
  EXPECT_NE((*row)["source"].get<std::string>().find("pp2.json:4"), std::string::npos) << *row;
}

TEST_F(Observed, OBS_04_KeysOfTheLogAreTheDocumentedOnes) {
  const std::set<std::string> documented =
      DocumentedKeys(TRIREME_SOURCE_DIR "/docs/log_json.md", "## Keys of `--log-json`");
  ASSERT_FALSE(documented.empty());
  for (const nlohmann::json& step : *steps_) {
    std::set<std::string> written;
    if (step != steps_->back()) written.insert("account");  // of the last line alone
    for (const auto& [key, value] : step.items()) written.insert(key);
    EXPECT_EQ(written, documented);
  }
}

}  // namespace
}  // namespace trireme::testing
