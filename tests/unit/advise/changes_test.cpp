// Single changes that make a layout fit: each does, is applied by the flags that it names, and is priced.
#include "engine/advise/changes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/schedule/predict.h"
#include "parsers/cli.h"
#include "parsers/layout_text.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

using testing::ModelOf;
using testing::SmallPlan;

constexpr const char* kText =
    R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 1}, "pipeline": {"activation_checkpoint_interval": 0}})";

ParseResult Parsed(const std::string& text) {
  TrainFlags flags;
  flags.for_plan = true;
  return ParseConfigText(text, "ds.json", flags, 4, 256);
}

Job JobOf() {
  const SmallPlan small{.layers = 8, .hidden = 256, .heads = 4, .vocab = 1000, .positions = 256, .sequence = 256};
  Job job{Parsed(kText).config, ModelOf(small), {}};
  job.inputs.world_size = 4;
  job.inputs.sequence_length = small.sequence;
  return job;
}

std::vector<std::string> Assignments(const Change& change) {
  std::vector<std::string> words;
  for (const auto& [key, value] : change.keys) words.push_back(key + "=" + value);
  return words;
}

TEST(Changes, EachFitsAndIsWhatItsFlagsMake) {
  const Job job = JobOf();
  const int64_t limit = PlanOf(job, job.config)->memory.total() * 9 / 10;
  const Cluster cluster = FindCluster("a100-pcie-hdr");
  const std::vector<Change> changes = CheapestChanges(job, {.limit_bytes = limit}, 4, &cluster, 5);
  ASSERT_EQ(5U, changes.size());
  const double own = Predict(*PlanOf(job, job.config), cluster).step_seconds;
  for (const Change& change : changes) {
    SCOPED_TRACE(change.what);
    EXPECT_LE(change.plan.memory.total(), limit);
    const ParseResult parsed = Parsed(WithKeys(kText, "ds.json", Assignments(change)));
    ASSERT_FALSE(parsed.diagnostics.HasErrors()) << parsed.diagnostics.Render();
    const Plan plan = *PlanOf(job, parsed.config);
    EXPECT_EQ(change.plan.memory.total(), plan.memory.total());
    ASSERT_TRUE(change.step_ratio);
    EXPECT_DOUBLE_EQ(Predict(plan, cluster).step_seconds / own, *change.step_ratio);
    EXPECT_EQ(16, parsed.config.batch.train_batch_size);
  }
  EXPECT_TRUE(std::ranges::is_sorted(changes, {}, [](const Change& change) { return *change.step_ratio; }));
  const std::vector<Change> two = CheapestChanges(job, {.limit_bytes = limit}, 4, &cluster, 2);
  ASSERT_EQ(2U, two.size());
  EXPECT_EQ(changes[0].what, two[0].what);
  EXPECT_EQ(changes[1].what, two[1].what);
  EXPECT_TRUE(WithFlags(two[0]).starts_with("--with ")) << WithFlags(two[0]);
}

// Each kind is as small a step as fits.
TEST(Changes, AreTheSmallestOfTheirKind) {
  const Job job = JobOf();
  const int64_t limit = PlanOf(job, job.config)->memory.total() - 1;
  const std::vector<Change> changes = CheapestChanges(job, {.limit_bytes = limit}, 4, nullptr, 100);
  std::vector<std::string> what;
  for (const Change& change : changes) {
    what.push_back(change.what);
    EXPECT_FALSE(change.step_ratio);
  }
  const auto has = [&](const std::string& text) { return std::ranges::find(what, text) != what.end(); };
  EXPECT_TRUE(has("train_micro_batch_size_per_gpu 4 -> 2 (accumulation 1 -> 2)"));
  EXPECT_TRUE(has("recompute cheap in 1 of 8 layers"));
  EXPECT_TRUE(has("zero_optimization.stage 1 -> 2"));
  EXPECT_TRUE(has("tensor_parallel.tp_size 1 -> 2"));
  EXPECT_TRUE(has("pipeline_parallel.pp_size 1 -> 2"));
}

// Far less memory than any single change saves: several together.
TEST(Changes, SeveralWhereOneIsNotEnough) {
  const Job job = JobOf();
  int64_t limit = PlanOf(job, job.config)->memory.total();
  std::vector<Change> changes;
  const auto single = [](const Change& change) {
    const auto has = [&](const char* text) { return change.what.find(text) != std::string::npos; };
    return has("recompute") + has("offload_optimizer") + has(" -> ") < 2;
  };
  do {
    limit = limit * 9 / 10;
    changes = CheapestChanges(job, {.limit_bytes = limit}, 1, nullptr, 2);
    ASSERT_FALSE(changes.empty()) << limit;
  } while (std::ranges::any_of(changes, single));
  for (const Change& change : changes) {
    const ParseResult parsed = Parsed(WithKeys(kText, "ds.json", Assignments(change)));
    ASSERT_FALSE(parsed.diagnostics.HasErrors()) << parsed.diagnostics.Render();
    const Plan plan = *PlanOf(job, parsed.config);
    EXPECT_EQ(change.plan.memory.total(), plan.memory.total()) << change.what;
    EXPECT_LE(plan.memory.total(), limit);
  }
}

TEST(Changes, NoneWhereNoneIsEnough) {
  EXPECT_TRUE(CheapestChanges(JobOf(), {.limit_bytes = 1000}, 4, nullptr, 2).empty());
}

}  // namespace
}  // namespace trireme
