// The account by class: what the arena holds at its peak, and what initialisation and saving take beside a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include "engine/schedule/make_program.h"
#include "engine/schedule/memory_series.h"
#include "engine/schedule/verify.h"
#include "parsers/model_config.h"

namespace trireme {
namespace {

struct Layout {
  int stage = 0;
  int64_t dp = 1, tp = 1, pp = 1;
  Recompute recompute = Recompute::kNone;
  bool offload = false;
};

Plan PlanOf(const Layout& layout) {
  Config config;
  config.batch = {layout.dp * 3, 1, 3};
  config.bf16.enabled = true;
  config.zero_optimization.zero_stage = layout.stage;
  config.tensor_parallel.tp_size = layout.tp;
  config.pipeline_parallel.pp_size = layout.pp;
  if (layout.offload) config.zero_optimization.offload_optimizer.device = OffloadDevice::kCpu;
  PlanInputs inputs;
  inputs.world_size = layout.dp * layout.tp * layout.pp;
  inputs.sequence_length = 1024;
  inputs.recompute = layout.recompute;
  Plan plan = MakePlan(config, NamedModel("gpt-1.3b"), inputs);
  AccountMemory(plan);
  return plan;
}

const std::vector<Layout> kLayouts = {{},
                                      {.stage = 0, .recompute = Recompute::kFull},
                                      {.stage = 1, .dp = 4},
                                      {.stage = 2, .dp = 4, .recompute = Recompute::kCheap},
                                      {.stage = 3, .dp = 4},
                                      {.stage = 3, .dp = 2, .recompute = Recompute::kFull, .offload = true},
                                      {.stage = 1, .dp = 2, .tp = 2, .pp = 2}};

TEST(MemoryClasses, AddUpToTheTotal) {
  for (const Layout& layout : kLayouts) {
    const Plan plan = PlanOf(layout);
    for (const MemoryAccount& account : plan.memory_of_pp_rank) {
      EXPECT_EQ(SumOf(ByClass(account, MemoryMoment::kStep)), account.with_overhead());
      EXPECT_EQ(SumOf(HostByClass(account, MemoryMoment::kStep)), account.host.total());
      const MemoryByClass bytes = ByClass(account, MemoryMoment::kStep);
      EXPECT_TRUE(std::ranges::all_of(bytes, [](int64_t of_class) { return of_class >= 0; })) << layout.stage;
    }
  }
}

// What lanes that lag may still hold belongs to its class.
TEST(MemoryClasses, GapsOfTheArenaAreFew) {
  for (const Layout& layout : kLayouts) {
    const Plan plan = PlanOf(layout);
    for (const MemoryAccount& account : plan.memory_of_pp_rank) {
      const int64_t gaps = account.arena - account.of_arena.live();
      EXPECT_GE(gaps, 0);
      EXPECT_LE(static_cast<double>(gaps), 0.02 * static_cast<double>(account.total())) << layout.stage;
    }
  }
}

TEST(MemoryClasses, AreWhereTheyBelong) {
  const int64_t tokens = 1024, h = 2048, layers = 24, saved = tokens * (14 * h * 2 + 4 * 4);
  const MemoryAccount kept = PlanOf({}).memory;
  EXPECT_NEAR(static_cast<double>(kept.of_arena.activations), static_cast<double>(layers * saved), 1e5);
  EXPECT_NEAR(static_cast<double>(kept.of_arena.boundaries), static_cast<double>((layers + 2) * tokens * h * 2), 1e5);
  EXPECT_EQ(kept.of_arena.gathered + kept.of_arena.buckets, 0);
  EXPECT_EQ(kept.logits, 1024 * int64_t{50304} * 2);
  EXPECT_EQ(kept.communicator, 0);
  const MemoryAccount two = PlanOf({.stage = 2, .dp = 4}).memory, three = PlanOf({.stage = 3, .dp = 4}).memory;
  EXPECT_EQ(two.of_arena.gathered, 0);
  EXPECT_GT(three.of_arena.gathered, 0);
  EXPECT_EQ(two.communicator, kCommunicatorBytes);
  // Only the last pipeline rank has logits.
  const Plan pipeline = PlanOf({.stage = 1, .dp = 2, .tp = 2, .pp = 2});
  EXPECT_EQ(pipeline.memory_of_pp_rank[0].logits, 0);
  EXPECT_GT(pipeline.memory_of_pp_rank[1].logits, 0);
  EXPECT_EQ(pipeline.memory.communicator, 5 * kCommunicatorBytes);
}

TEST(MemoryClasses, MomentsOfARunDiffer) {
  const MemoryAccount account = PlanOf({.stage = 3, .dp = 4}).memory;
  const int64_t begin = SumOf(ByClass(account, MemoryMoment::kInitialise)),
                step = SumOf(ByClass(account, MemoryMoment::kStep)),
                save = SumOf(ByClass(account, MemoryMoment::kSave));
  EXPECT_EQ(step - begin, account.pool);
  // One tensor on its way to the file: the embedding.
  EXPECT_EQ(save - step, int64_t{50304} * 2048 * 2);
  const MemoryAccount::Host host = PlanOf({.stage = 3, .dp = 2, .offload = true}).memory.host;
  EXPECT_GT(host.initialising, 0);
  EXPECT_EQ(host.peak(), host.total() + std::max(host.initialising, host.saving));
}

TEST(MemoryClasses, SeriesEndsAsItBegan) {
  for (const Layout& layout : kLayouts) {
    const Plan plan = PlanOf(layout);
    for (int pp_rank = 0; pp_rank < layout.pp; ++pp_rank) {
      const int rank = plan.topology.RankOf({pp_rank, 0, 0});
      const CompiledProgram program = Compile(MakeProgram(plan, ProgramKind::kTrain, rank), OptionsOf(plan));
      const MemoryAccount& account = plan.memory_of_pp_rank[static_cast<size_t>(pp_rank)];
      const std::vector<MemoryByClass> series = MemorySeries(plan, program);
      ASSERT_EQ(series.size(), program.instructions.size());
      int64_t most = 0;
      MemoryByClass peak{};
      for (const MemoryByClass& bytes : series) {
        most = std::max(most, SumOf(bytes));
        for (size_t c = 0; c < bytes.size(); ++c) peak[c] = std::max(peak[c], bytes[c]);
      }
      EXPECT_EQ(peak[static_cast<size_t>(MemoryClass::kAttention)], account.pool);
      EXPECT_LE(most, account.with_overhead());
      // In the order of issue nothing lags: what was freed and may not be used anew yet is missing.
      EXPECT_GE(static_cast<double>(most), 0.95 * static_cast<double>(account.with_overhead() - account.pool));
      // After the step nothing transient is left but what the last instruction used.
      const MemoryByClass& last = series.back();
      EXPECT_EQ(last[static_cast<size_t>(MemoryClass::kActivations)], 0);
      EXPECT_EQ(last[static_cast<size_t>(MemoryClass::kAttention)], 0);
    }
  }
}

// The copies that CPU-updated weights take on their way: half precision all along.
TEST(MemoryClasses, MEM_13_OffloadKeepsOneCopyOfTheWeightsAndABoundedStaging) {
  const Plan plan = PlanOf({.stage = 2, .dp = 1, .offload = true});
  const MemoryAccount& m = plan.memory;
  int64_t elements = 0, largest_bucket = 0;
  for (const UnitLayout& unit : plan.units) elements += unit.padded_elements;
  for (const UnitRange& bucket : plan.buckets) {
    int64_t of_bucket = 0;
    for (int u = bucket.first; u <= bucket.last; ++u) of_bucket += plan.units[static_cast<size_t>(u)].padded_elements;
    largest_bucket = std::max(largest_bucket, of_bucket);
  }
  EXPECT_EQ(m.weights, 2 * elements);
  EXPECT_EQ(m.master_weights + m.moments, 0);
  EXPECT_LE(m.of_arena.gathered + m.of_arena.buckets, 2 * largest_bucket);
}

TEST(MemoryClasses, NamesAreDistinct) {
  std::set<std::string_view> texts, json;
  for (size_t c = 0; c < kNumMemoryClasses; ++c) {
    texts.insert(Name(static_cast<MemoryClass>(c)));
    json.insert(JsonName(static_cast<MemoryClass>(c)));
  }
  EXPECT_EQ(texts.size(), kNumMemoryClasses);
  EXPECT_EQ(json.size(), kNumMemoryClasses);
}

}  // namespace
}  // namespace trireme
