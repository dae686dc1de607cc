#include "engine/report/plan_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/bytes.h"
#include "engine/report/simulated.h"
#include "engine/report/words.h"
#include "engine/schedule/verify.h"
#include "tests/unit/plan/small_plan.h"
#include "tests/unit/report/html_check.h"

namespace trireme::report {
namespace {

using testing::PlanOf;
using testing::SmallPlan;

Plan Accounted(const SmallPlan& small) {
  Plan plan = PlanOf(small);
  AccountMemory(plan);
  return plan;
}

SmallPlan Pipeline() {
  SmallPlan small;
  small.layers = 4;
  small.ranks = 4;
  small.pp = 2;
  small.micro_batches = 6;
  small.zero_stage = 1;
  small.bf16 = true;
  return small;
}

class PlanPageOf : public ::testing::Test {
 protected:
  void Make(const SmallPlan& small) {
    plan_ = Accounted(small);
    prediction_ = Predict(plan_, cluster_);
    html_ = PlanPage(plan_, cluster_, prediction_, 80e9);
  }
  Cluster cluster_ = FindCluster("a100-pcie-hdr");
  Plan plan_;
  Prediction prediction_;
  std::string html_;
};

TEST_F(PlanPageOf, IsWellFormedAndRefersToNothing) {
  for (const int ranks : {1, 2, 4}) {
    SmallPlan small;
    small.ranks = ranks;
    Make(small);
    EXPECT_EQ(testing::FaultsOfPage(html_), std::vector<std::string>{}) << ranks;
  }
  Make(Pipeline());
  EXPECT_EQ(testing::FaultsOfPage(html_), std::vector<std::string>{});
  plan_.model.name = "a <b>\"&</script>";
  EXPECT_EQ(testing::FaultsOfPage(PlanPage(plan_, cluster_, prediction_, 0)), std::vector<std::string>{});
}

TEST(HtmlCheck, FindsWhatAPageMustNotHave) {
  EXPECT_TRUE(testing::FaultsOfPage("<!DOCTYPE html>\n<p>a</p>").empty());
  EXPECT_EQ(testing::FaultsOfPage("<!DOCTYPE html>\n<p><b>a</p></b>").size(), 2U);
  EXPECT_EQ(testing::FaultsOfPage("<!DOCTYPE html>\n<p>a < b</p>").size(), 1U);
  EXPECT_EQ(testing::FaultsOfPage("<!DOCTYPE html>\n<a href=\"x.css\">a</a>").size(), 1U);
  EXPECT_EQ(testing::FaultsOfPage("<!DOCTYPE html>\n<script>\nfetch('a')</script>").size(), 1U);
}

TEST_F(PlanPageOf, EveryInstructionOfEveryRankIsASpan) {
  Make(Pipeline());
  nlohmann::json data = nlohmann::json::parse(testing::DataOfPage(html_, "predicted"));
  EXPECT_NEAR(data["step_seconds"].get<double>(), prediction_.step_seconds, 0.02 * prediction_.step_seconds);
  ASSERT_EQ(data["rows"].size(), 4U);
  for (size_t rank = 0; rank < 4; ++rank) {
    nlohmann::json& row = data["rows"][rank];
    EXPECT_EQ(row["label"], "rank " + std::to_string(rank));
    EXPECT_EQ(row.contains("like"), rank % 2 == 1);  // of two data-parallel ranks
    if (row.contains("like")) row["lanes"] = data["rows"][row["like"].get<size_t>()]["lanes"];
    int forwards = 0, backwards = 0;
    double last = -1;
    for (const auto& lane : data["rows"][rank]["lanes"]) {
      last = -1;
      for (size_t i = 0; i < lane["spans"].size(); i += 5) {
        const double start = lane["spans"][i];
        EXPECT_GE(start, last);
        last = start;
        EXPECT_LE(start + lane["spans"][i + 1].get<double>(), data["step_seconds"].get<double>() * 1e9 + 1);
        const std::string kind = data["kinds"][lane["spans"][i + 2].get<size_t>()]["name"];
        forwards += kind == "forward";
        backwards += kind == "backward";
      }
    }
    // Six units on two stages, six micro-batches; the head has no backward of its own.
    EXPECT_EQ(forwards, 18);
    EXPECT_EQ(backwards, rank < 2 ? 18 : 12);
  }
}

// The picture's highest point is the account's peak, without the gaps of the arena.
TEST_F(PlanPageOf, MemoryOverTimeReachesTheAccount) {
  for (const SmallPlan& small : {Pipeline(), SmallPlan{.micro_batches = 3, .zero_stage = 3}}) {
    Make(small);
    const nlohmann::json data = nlohmann::json::parse(testing::DataOfPage(html_, "memory"));
    ASSERT_EQ(data["rows"].size(), plan_.memory_of_pp_rank.size());
    for (size_t rank = 0; rank < data["rows"].size(); ++rank) {
      int64_t most = 0;
      for (const auto& point : data["rows"][rank]["bytes"]) {
        int64_t sum = 0;
        for (const auto& bytes : point) sum += bytes.get<int64_t>();
        most = std::max(most, sum);
      }
      const MemoryByClass account = ByClass(plan_.memory_of_pp_rank[rank], MemoryMoment::kStep);
      const int64_t gaps = account[static_cast<size_t>(MemoryClass::kGaps)];
      EXPECT_LE(most, SumOf(account));
      EXPECT_GE(most, SumOf(account) - gaps - SumOf(account) / 50) << "rank " << rank;
    }
  }
}

TEST_F(PlanPageOf, OBS_06_FiguresAreThoseOfThePlan) {
  Make(Pipeline());
  const auto has = [&](const std::string& text) { return html_.find(text) != std::string::npos; };
  EXPECT_TRUE(has("<b>" + Seconds(prediction_.step_seconds) + "</b>"));
  EXPECT_TRUE(has("<b>" + FormatCount(static_cast<int64_t>(prediction_.tokens_per_second)) + "</b>"));
  EXPECT_TRUE(has("<b>" + Percent(prediction_.bubble) + "</b>"));
  EXPECT_TRUE(has("<b>" + FormatBytes(plan_.memory.with_overhead()) + "</b>"));
  EXPECT_TRUE(has("<td>" + FormatBytes(plan_.traffic.reduce) + "</td>"));
}

// More ranks than a picture holds are shown once for all that run alike.
TEST(SimulateStep, ManyRanksShareTheirRows) {
  SmallPlan small = Pipeline();
  small.ranks = 64;
  const SimulatedStep step = SimulateStep(Accounted(small), FindCluster("a100-pcie-hdr"));
  ASSERT_EQ(step.timeline.rows.size(), 2U);
  EXPECT_EQ(step.timeline.rows[1].label, "32 to 63");
}

}  // namespace
}  // namespace trireme::report
