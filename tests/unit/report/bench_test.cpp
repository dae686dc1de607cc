#include "engine/report/bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/unit/report/html_check.h"

namespace trireme::report {
namespace {

BenchLayout Measured(const std::string& name, double seconds) {
  BenchLayout layout;
  layout.name = name;
  layout.description = "pp 1 x dp 2 x tp 1";
  layout.measured = {
      seconds, 1000 / seconds, 0.5, 3 << 20, {{"weights", 1 << 20}, {"arena", 2 << 20}}, {0.7, 0.3, 0.2, 0.1}};
  layout.step_deviation = seconds / 10;
  layout.step_seconds = {0.9 * seconds, 1.1 * seconds};
  layout.timeline.step_seconds = seconds;
  layout.timeline.rows = {{"rank 0", "", {{Lane::kCompute, SpanKind::kForward, 0, 0.7 * seconds, 0, "Forward <h.0>"}}}};
  return layout;
}

BenchReport Report() {
  BenchReport report{"small", "the CPU", "reference-study", 2, 16, 128, 2, 6, {}};
  report.layouts.push_back(Measured("dp2:zero1", 0.25));
  report.layouts.push_back(Measured("tp2", 0.5));
  report.layouts[1].predicted = report.layouts[1].measured;
  report.layouts[1].predicted->step_seconds = 0.45;
  report.layouts[1].predicted_timeline = report.layouts[1].timeline;
  BenchLayout failed;
  failed.name = "pp3";
  failed.failure = "PLN002: 3 stages & 2 ranks";
  report.layouts.push_back(failed);
  return report;
}

TEST(Bench, TableHasPredictionsBelowAndFailuresWithTheirReason) {
  const std::string table = BenchTable(Report());
  std::istringstream in(table);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 5U) << table;
  EXPECT_TRUE(lines[1].starts_with("dp2:zero1")) << table;
  for (const char* part : {"250 ms +- 25.0 ms", "4,000", "3.00 MiB", "30.0 %", "20.0 %", "10.0 %"}) {
    EXPECT_NE(lines[1].find(part), std::string::npos) << part << "\n" << table;
  }
  EXPECT_TRUE(lines[3].starts_with("  predicted")) << table;
  EXPECT_NE(lines[3].find("450 ms"), std::string::npos) << table;
  EXPECT_EQ(lines[4], "pp3: PLN002: 3 stages & 2 ranks");
  EXPECT_EQ(lines[0].size(), lines[1].size());
  EXPECT_EQ(lines[1].size(), lines[3].size());
}

TEST(Bench, JsonLinesReadBack) {
  std::istringstream in(BenchJsonLines(Report()));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["measured"]["step_seconds"], 0.25);
  EXPECT_EQ(lines[0]["measured"]["memory_by_class"]["arena"], 2 << 20);
  EXPECT_TRUE(lines[0]["predicted"].is_null());
  EXPECT_EQ(lines[1]["predicted"]["step_seconds"], 0.45);
  EXPECT_EQ(lines[1]["predicted"]["bubble"], 0.1);
  EXPECT_EQ(lines[2]["failure"], "PLN002: 3 stages & 2 ranks");
  EXPECT_TRUE(lines[2]["measured"].is_null());
}

TEST(Bench, PageIsWellFormedAndHasTheFigures) {
  const std::string html = BenchPage(Report());
  EXPECT_EQ(testing::FaultsOfPage(html), std::vector<std::string>{});
  for (const char* part :
       {"250 ms ± 25.0 ms", "<small>450 ms</small>", "pp3 was not measured: PLN002: 3 stages &amp; 2 ranks"}) {
    EXPECT_NE(html.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(nlohmann::json::parse(testing::DataOfPage(html, "measuredlayout0"))["names"][0], "Forward <h.0>");
  EXPECT_FALSE(testing::DataOfPage(html, "predictedlayout1").empty());
}

}  // namespace
}  // namespace trireme::report
