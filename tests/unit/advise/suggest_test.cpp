// The ranking is that of all layouts; what is suggested parses, plans, verifies and fits, and no neighbour is faster.
#include "engine/advise/suggest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "engine/advise/bound.h"
#include "engine/schedule/compile.h"
#include "engine/schedule/make_program.h"
#include "engine/schedule/verify.h"
#include "parsers/cli.h"
#include "parsers/layout_text.h"
#include "parsers/model_config.h"
#include "tests/unit/plan/small_plan.h"

namespace trireme {
namespace {

using testing::ConfigOf;
using testing::ModelOf;
using testing::SmallPlan;

// Layers of a GPT-2 of 124M on a few devices whose memory makes it tight.
AdviceRequest Small(const std::string& cluster, int64_t nodes, int64_t devices, double gib) {
  SmallPlan small{.layers = 4,
                  .hidden = 768,
                  .heads = 12,
                  .vocab = 5000,
                  .positions = 512,
                  .sequence = 512,
                  .micro = 8 / nodes / devices,
                  .micro_batches = 1,
                  .ranks = nodes * devices,
                  .zero_stage = 1,
                  .bf16 = true};
  AdviceRequest request{{ConfigOf(small), ModelOf(small), {}}, FindCluster(cluster), devices, {}, 1000};
  request.cluster.nodes = nodes;
  request.cluster.devices_per_node = devices;
  request.job.inputs.world_size = small.ranks;
  request.job.inputs.sequence_length = small.sequence;
  request.fill.limit_bytes = static_cast<int64_t>(gib * (1 << 30));
  return request;
}

// Every layout filled and predicted, the fastest first.
std::vector<Suggestion> BruteForce(const AdviceRequest& request) {
  std::vector<Suggestion> all;
  for (const Layout& layout : EnumerateLayouts(request.job, request.ranks_per_node)) {
    std::optional<Suggestion> filled = FastestFill(request, WithLayout(request.job.config, layout));
    if (filled) all.push_back(std::move(*filled));
  }
  std::ranges::stable_sort(all, {}, &Suggestion::step_seconds);
  return all;
}

void ExpectSound(const Plan& plan) {
  std::vector<CompiledProgram> ranks;
  for (int rank = 0; rank < plan.topology.world_size(); ++rank) {
    ranks.push_back(Compile(MakeProgram(plan, ProgramKind::kTrain, rank), OptionsOf(plan)));
  }
  const VerifyReport report = Verify(plan, ranks);
  EXPECT_TRUE(report.ok()) << report.problems.front();
}

TEST(Suggest, RanksAsPredictingEveryLayoutDoes) {
  for (const auto& [cluster, nodes, devices, gib] :
       {std::tuple{"a100-pcie-hdr", 1, 4, 0.5}, {"a100-nvswitch-hdr", 2, 2, 0.35}}) {
    AdviceRequest request = Small(cluster, nodes, devices, gib);
    const std::vector<Suggestion> all = BruteForce(request);
    const Advice every = Suggest(request);
    ASSERT_EQ(all.size(), every.best.size());
    ASSERT_GE(all.size(), 10U);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].step_seconds(), every.best[i].step_seconds()) << i;
    EXPECT_EQ(0, every.slower);
    EXPECT_EQ(every.legal, every.too_large + static_cast<int64_t>(all.size()));
    request.wanted = 3;
    EXPECT_EQ(0, every.not_looked_at);
    request.most_work = 1;  // what was begun is ended: there is an answer
    const Advice least = Suggest(request);
    EXPECT_GE(least.best.size(), 1U);
    EXPECT_GT(least.not_looked_at, 0);
    request.most_work = 400'000;
    const Advice few = Suggest(request);
    ASSERT_EQ(3U, few.best.size());
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(all[i].step_seconds(), few.best[i].step_seconds()) << i;
    EXPECT_GT(few.slower, 0);
  }
}

TEST(Suggest, WhatIsSuggestedLoadsPlansVerifiesAndFits) {
  AdviceRequest request = Small("a100-pcie-hdr", 1, 4, 0.4);
  const std::string text = R"({"train_batch_size": 8, "bf16": {"enabled": true}, "optimizer": {"type": "AdamW"},
      "zero_optimization": {"stage": 1}, "model_parallel_size": 1})";
  TrainFlags flags;
  flags.for_plan = true;
  request.job.config = ParseConfigText(text, "ds.json", flags, 4, 768).config;
  request.wanted = 12;
  const Advice advice = Suggest(request);
  ASSERT_EQ(12U, advice.best.size());
  for (const Suggestion& suggestion : advice.best) {
    const std::string written = WithLayoutKeys(text, "ds.json", request.job.config, suggestion.config);
    const ParseResult parsed = ParseConfigText(written, "out.json", flags, 4, 768);
    ASSERT_FALSE(parsed.diagnostics.HasErrors()) << parsed.diagnostics.Render() << written;
    const Plan plan = *PlanOf(request.job, parsed.config);
    EXPECT_EQ(suggestion.plan.memory.total(), plan.memory.total()) << written;
    EXPECT_LE(plan.memory.total(), request.fill.limit_bytes);
    EXPECT_EQ(suggestion.step_seconds(), Predict(plan, request.cluster).step_seconds);
    EXPECT_EQ(8, parsed.config.batch.train_batch_size);
    ExpectSound(plan);
  }
  const std::vector<std::string> reasons = Reasons(request, advice, advice.best.front());
  ASSERT_EQ(4U, reasons.size());
  EXPECT_NE(std::string::npos, reasons[0].find("on the fullest rank"));
  EXPECT_NE(std::string::npos, reasons[1].find("tensor"));
  EXPECT_NE(std::string::npos, reasons[2].find("a rank sends"));
  EXPECT_NE(std::string::npos, reasons[3].find("tokens/s"));
}

// What the file says of the device decides nothing: states go where they take less time, or where there is room.
TEST(Suggest, OffloadsToWhatIsFasterOfThePlacesThatThereAre) {
  AdviceRequest request = Small("a100-pcie-hdr", 1, 2, 0.19);
  request.wanted = 4;
  const auto best = [&](OffloadDevice device, const std::string& path) {
    OffloadOptimizerConfig& offload = request.job.config.zero_optimization.offload_optimizer;
    offload = {};
    offload.device = device;
    offload.nvme_path = path;
    return Suggest(request).best;
  };
  const std::vector<Suggestion> unsaid = best(OffloadDevice::kNone, "");
  ASSERT_EQ(4U, unsaid.size());
  EXPECT_GT(unsaid.front().layout.offload_ratio(), 0) << "the memory is too small for this test to say something";
  for (const std::vector<Suggestion>& said : {best(OffloadDevice::kCpu, ""), best(OffloadDevice::kNvme, "/disk")}) {
    ASSERT_EQ(4U, said.size());
    for (size_t i = 0; i < said.size(); ++i) {
      EXPECT_EQ(unsaid[i].step_seconds(), said[i].step_seconds()) << i;
      EXPECT_EQ(OffloadDevice::kCpu, said[i].layout.offload_optimizer.device) << i;
    }
  }
  request.fill.host_limit_bytes = unsaid.front().plan.memory.host.peak() / 2;
  EXPECT_TRUE(best(OffloadDevice::kCpu, "").empty());
  const std::vector<Suggestion> on_disk = best(OffloadDevice::kCpu, "/disk");
  ASSERT_FALSE(on_disk.empty());
  EXPECT_TRUE(on_disk.front().plan.optimizer_on_disk);
  request.fill.limit_bytes = INT64_MAX / 2;
  EXPECT_EQ(OffloadDevice::kNone, best(OffloadDevice::kNvme, "/disk").front().layout.offload_optimizer.device);
}

// One step along each axis from the winner, filled or as it is: slower, or it does not fit.
TEST(Suggest, NoNeighbourOfTheWinnerIsFaster) {
  AdviceRequest request = Small("a100-pcie-hdr", 1, 4, 0.45);
  request.wanted = 1;
  const Suggestion winner = Suggest(request).best.at(0);
  int neighbours = 0;
  const auto compare = [&](const Layout& layout) {
    const Config config = WithLayout(request.job.config, layout);
    const std::optional<Plan> plan = PlanOf(request.job, config);
    if (!plan || plan->memory.total() > request.fill.limit_bytes) return;
    ++neighbours;
    EXPECT_GE(Predict(*plan, request.cluster).step_seconds, winner.step_seconds() * (1 - 1e-9))
        << Describe(layout, *plan);
  };
  for (const int64_t factor : {-2, 2}) {
    const auto scaled = [&](int64_t value) { return factor < 0 ? std::max<int64_t>(1, value / 2) : value * 2; };
    for (int64_t Layout::*axis : {&Layout::micro_batch, &Layout::tp, &Layout::pp, &Layout::virtual_stages}) {
      Layout layout = winner.layout;
      layout.*axis = scaled(layout.*axis);
      const int64_t dp = 4 / (layout.tp * layout.pp);
      if (dp < 1 || 8 % (dp * layout.micro_batch) != 0) continue;
      compare(layout);
    }
  }
  for (const int stage : {1, 2, 3}) {
    Layout layout = winner.layout;
    layout.zero_stage = stage;
    compare(layout);
  }
  for (const Recompute policy : {Recompute::kNone, Recompute::kCheap, Recompute::kFull}) {
    Layout layout = winner.layout;
    layout.recompute.runs = {{policy, 0}};
    compare(layout);
  }
  EXPECT_GE(neighbours, 5);
}

// What bounds a layout must bound it, or the search would pass the best one by.
TEST(Suggest, BoundsLieBelowWhatIsPredictedAndPlanned) {
  const AdviceRequest request = Small("a100-nvswitch-hdr", 1, 4, 0.4);
  for (const Layout& layout : EnumerateLayouts(request.job, request.ranks_per_node)) {
    const std::optional<Plan> plan = PlanOf(request.job, WithLayout(request.job.config, layout));
    if (!plan) continue;
    EXPECT_LE(LeastSeconds(*plan, request.cluster), Predict(*plan, request.cluster).step_seconds * 1.0001)
        << Describe(layout, *plan);
    EXPECT_LE(LeastBytes(*plan, /*offloaded=*/false), plan->memory.total()) << Describe(layout, *plan);
  }
  AdviceRequest tight = Small("a100-pcie-hdr", 1, 4, 0.3);
  int bounded = 0;
  for (const Layout& layout : EnumerateLayouts(tight.job, tight.ranks_per_node)) {
    Config config = WithLayout(tight.job.config, layout);
    const auto with = [&](Recompute policy) {
      config.recompute.runs = {{policy, 0}};
      return PlanShapeOf(tight.job, config);
    };
    const std::optional<Plan> kept = with(Recompute::kNone);
    if (!kept) continue;
    const double least = LeastSecondsThatFit(*kept, *with(Recompute::kCheap), *with(Recompute::kFull), tight.cluster,
                                             tight.fill.limit_bytes, layout.zero_stage > 0);
    const std::optional<Suggestion> filled = FastestFill(tight, config);
    if (filled) {
      EXPECT_LE(least, filled->step_seconds() * 1.0001) << Describe(layout, filled->plan);
    }
    bounded += least > LeastSeconds(*kept, tight.cluster);
  }
  EXPECT_GT(bounded, 0);
}

AdviceRequest ThirteenBillion(const std::string& cluster, int64_t nodes) {
  AdviceRequest request;
  ModelFlags flags;
  flags.model_name = "gpt-13b";
  Diagnostics diagnostics;
  request.job.model = ResolveModel(flags, "", 1, diagnostics);
  request.cluster = FindCluster(cluster);
  request.cluster.nodes = nodes;
  Config& config = request.job.config;
  config.bf16.enabled = true;
  config.zero_optimization.zero_stage = 1;
  config.world_size = config.dp_size = request.job.inputs.world_size = 8 * nodes;
  config.batch = {64, 1, 64 / config.dp_size};
  request.job.inputs.sequence_length = 2048;
  request.ranks_per_node = 8;
  request.fill.scope = MemoryScope::kGpu;
  request.fill.limit_bytes = MemoryLimit(static_cast<double>(request.cluster.device.memory_bytes), request.fill.scope);
  request.wanted = 1;
  return request;
}

// On PCIe: a short pipeline with ZeRO-1 and many micro-batches, or sharding with few large ones; no tensor parallelism
// over such links. Behind NVSwitch data parallelism alone.
TEST(Suggest, ReferenceMachinesGetTheLayoutsThatTheirLinksAskFor) {
  const Suggestion pcie = Suggest(ThirteenBillion("a100-pcie-hdr", 1)).best.at(0);
  EXPECT_EQ(1, pcie.layout.tp);
  if (pcie.layout.pp > 1) {
    EXPECT_LE(pcie.layout.pp, 4);
    EXPECT_EQ(1, pcie.layout.zero_stage);
    EXPECT_GE(pcie.plan.batch.num_micro_batches, 4 * pcie.layout.pp);
  } else {
    EXPECT_GE(pcie.layout.micro_batch, 4);
  }
  const Suggestion nvswitch = Suggest(ThirteenBillion("a100-nvswitch-hdr", 1)).best.at(0);
  EXPECT_EQ(1, nvswitch.layout.tp);
  EXPECT_EQ(1, nvswitch.layout.pp);
  EXPECT_LT(nvswitch.step_seconds(), pcie.step_seconds());
}

TEST(Suggest, ThirteenBillionOnSixteenDevicesTakesSeconds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers slow it down";
#endif
  AdviceRequest request = ThirteenBillion("a100-pcie-hdr", 2);
  request.wanted = 5;
  const std::clock_t start = std::clock();
  EXPECT_EQ(5U, Suggest(request).best.size());
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 5);
}

TEST(Suggest, TensorParallelGroupsStayInsideNodes) {
  int64_t across = 0;
  for (const Layout& layout : EnumerateLayouts(Small("a100-pcie-hdr", 2, 2, 1).job, 2, &across)) {
    EXPECT_LE(layout.tp, 2);
  }
  EXPECT_EQ(1, across);
}

}  // namespace
}  // namespace trireme
