// The comparison as a user runs it: real processes on the CPU.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tests/cli/launcher/command.h"
#include "tests/cli/report/browser.h"
#include "tests/unit/report/html_check.h"

namespace trireme::testing {
namespace {

std::set<std::string> DocumentedKeys() {
  std::set<std::string> keys;
  std::ifstream in(TRIREME_SOURCE_DIR "/docs/bench.md");
  const std::regex row("^\\| `([a-z_]+)` \\|.*");
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("## ")) inside = line == "## Keys of `--json`";
    std::smatch match;
    if (inside && std::regex_match(line, match, row)) keys.insert(match[1]);
  }
  return keys;
}

TEST(BenchCommand, MeasuresLayoutsPredictsThemAndGoesOnAfterAFailure) {
  const TempFolder folder;
  const std::string json = (folder.path() / "b.jsonl").string(), html = (folder.path() / "b.html").string();
  const Outcome outcome = RunTrireme({"bench",
                                      "--num-layers",
                                      "2",
                                      "--hidden-size",
                                      "32",
                                      "--num-attention-heads",
                                      "2",
                                      "--vocab-size",
                                      "200",
                                      "--seq-length",
                                      "32",
                                      "--num_gpus",
                                      "2",
                                      "--cpu",
                                      "--steps",
                                      "3",
                                      "--global-batch-size",
                                      "4",
                                      "--layouts",
                                      "tp2,pp2:v8,pp2:zero1",
                                      "--cluster",
                                      "reference-study",
                                      "--json",
                                      json,
                                      "--html",
                                      html});
  EXPECT_EQ(outcome.code, 1) << outcome.err;  // two blocks make no 16 stages
  std::vector<nlohmann::json> lines;
  std::ifstream in(json);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 3U) << outcome.out << outcome.err;
  for (const nlohmann::json& line : lines) {
    std::set<std::string> keys;
    for (const auto& [key, value] : line.items()) keys.insert(key);
    EXPECT_EQ(keys, DocumentedKeys());
  }
  EXPECT_TRUE(lines[1]["measured"].is_null());
  EXPECT_TRUE(lines[1]["failure"].is_string());
  for (const size_t good : {0, 2}) {
    const nlohmann::json &line = lines[good], &measured = line["measured"];
    ASSERT_TRUE(line["failure"].is_null()) << line["failure"];
    ASSERT_EQ(line["step_times"].size(), 3U);
    double sum = 0;
    for (const auto& seconds : line["step_times"]) sum += seconds.get<double>();
    EXPECT_NEAR(measured["step_seconds"].get<double>(), sum / 3, 1e-12);
    EXPECT_NEAR(measured["tokens_per_second"].get<double>(), 3 * 4 * 32 / sum, 1e-6);
    EXPECT_GT(measured["memory_bytes"], 0);
    EXPECT_FALSE(measured["memory_by_class"].empty());
    for (const char* share : {"waiting_share", "communication_share", "bubble"}) {
      const bool none = good == 0 && std::string(share) == "bubble";  // one stage
      EXPECT_GE(measured[share].get<double>(), none ? 0 : 1e-6) << share;
      EXPECT_LT(measured[share].get<double>(), 1) << share;
    }
    EXPECT_GT(line["predicted"]["step_seconds"].get<double>(), 0);
    EXPECT_GT(line["predicted"]["memory_by_class"]["weights"], 0);
  }
  std::ifstream page(html);
  const std::string text(std::istreambuf_iterator<char>(page), {});
  EXPECT_EQ(FaultsOfPage(text), std::vector<std::string>{});
  if (const std::string browser = Browser(); !browser.empty()) {
    std::string why;
    const auto rendered = Render(browser, text, /*dark=*/false, why);
    ASSERT_TRUE(rendered) << why;
    EXPECT_EQ(rendered->complaints, std::vector<std::string>{});
    EXPECT_EQ(rendered->requests, 0);
    EXPECT_EQ(rendered->painted, 9);  // five plots, and two timelines of each of two layouts
    EXPECT_EQ(rendered->blank, 0);
    EXPECT_EQ(rendered->wide, 0);
  }
  // The tensor-parallel collectives inside units are events of a lane of their own.
  const nlohmann::json traced = nlohmann::json::parse(DataOfPage(text, "measuredlayout0"));
  ASSERT_EQ(traced["rows"].size(), 2U);
  std::set<std::string> lanes;
  for (const auto& lane : traced["rows"][1]["lanes"]) lanes.insert(lane["name"]);
  EXPECT_TRUE(lanes.contains("tp") && lanes.contains("compute"));
}

}  // namespace
}  // namespace trireme::testing
