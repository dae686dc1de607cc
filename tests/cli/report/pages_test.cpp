// The pages as a browser shows them.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/cli/launcher/command.h"
#include "tests/cli/report/browser.h"

namespace trireme::testing {
namespace {

constexpr const char* kNoBrowser = "no chromium or google-chrome on the PATH: apt-get install chromium";

std::string ReadText(const std::filesystem::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

void ExpectGood(const std::string& browser, const std::string& html, bool dark, int drawings) {
  std::string why;
  const std::optional<Rendered> rendered = Render(browser, html, dark, why);
  ASSERT_TRUE(rendered) << why;
  EXPECT_EQ(rendered->complaints, std::vector<std::string>{});
  EXPECT_EQ(rendered->requests, 0);
  EXPECT_EQ(rendered->painted, drawings);
  EXPECT_EQ(rendered->blank, 0);
  EXPECT_EQ(rendered->wide, 0);
}

std::string PageOfPlan(const std::filesystem::path& folder, const std::string& config,
                       const std::vector<std::string>& more) {
  std::ofstream(folder / "config.json") << config;
  std::vector<std::string> words = {
      "plan",   (folder / "config.json").string(), "--model_name", "gpt-1.3b", "--cluster", "a100-pcie-hdr",
      "--html", (folder / "page.html").string()};
  words.insert(words.end(), more.begin(), more.end());
  const Outcome outcome = RunTrireme(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return ReadText(folder / "page.html");
}

TEST(Pages, PlanOfOneRank) {
  const std::string browser = Browser();
  if (browser.empty()) GTEST_SKIP() << kNoBrowser;
  const TempFolder folder;
  ExpectGood(
      browser,
      PageOfPlan(folder.path(), R"({"train_batch_size": 4, "bf16": {"enabled": true}, "optimizer": {"type": "Adam"}})",
                 {"--num_gpus", "1"}),
      /*dark=*/false, /*drawings=*/2);
}

TEST(Pages, PlanOfSixteenRanksAndSixtyFourMicroBatches) {
  const std::string browser = Browser();
  if (browser.empty()) GTEST_SKIP() << kNoBrowser;
  const TempFolder folder;
  ExpectGood(browser,
             PageOfPlan(folder.path(),
                        R"({"train_batch_size": 256, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
                            "pipeline_parallel": {"pp_size": 4}, "zero_optimization": {"stage": 1},
                            "optimizer": {"type": "Adam"}})",
                        {"--num_nodes", "2", "--num_gpus", "8"}),
             /*dark=*/true, /*drawings=*/2);
}

// The check itself sees what it is for.
TEST(Pages, ABrokenPageIsSeen) {
  const std::string browser = Browser();
  if (browser.empty()) GTEST_SKIP() << kNoBrowser;
  std::string why;
  const auto rendered = Render(browser,
                               "<!DOCTYPE html>\n<html><head><title>a</title></head><body><canvas></canvas><img "
                               "src=\"http://127.0.0.1:9/a.png\"><script>nothing.there();</script></body></html>",
                               /*dark=*/false, why);
  ASSERT_TRUE(rendered) << why;
  EXPECT_FALSE(rendered->complaints.empty());
  EXPECT_EQ(rendered->requests, 1);
  EXPECT_EQ(rendered->blank, 1);
}

}  // namespace
}  // namespace trireme::testing
