// What is offloaded trains like one rank that offloads nothing: in fp64 to the last bits, in bf16 bitwise like the same
// layout without offload, whose update is the same kernel.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/ranks/trainer/folder.h"
#include "tests/ranks/trainer/trains_alike.h"
#include "tests/support/run_threads.h"

namespace trireme::test {
namespace {

const Reference& OneRank(bool sgd) {
  static const Reference with_sgd = ReferenceOf({.sgd = true}), with_adamw = ReferenceOf({.sgd = false});
  return sgd ? with_sgd : with_adamw;
}

struct Layout {
  int stage = 1, world = 1;
  int64_t accumulation = 1;
  double optimizer = 1;  // ratio
  bool param = false;
  bool sgd = false;
  int64_t tp = 1, pp = 1;
  bool sequence_parallel = false;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  Recompute recompute = Recompute::kNone;
};

TinyRun RunOf(const Layout& layout, TinyRun run) {
  run.zero_stage = layout.stage;
  run.world = layout.world;
  run.accumulation = layout.accumulation;
  run.offload_optimizer = layout.optimizer;
  run.offload_param = layout.param;
  run.tp = layout.tp;
  run.pp = layout.pp;
  run.sequence_parallel = layout.sequence_parallel;
  run.schedule = layout.schedule;
  run.recompute = layout.recompute;
  if (layout.tp > 1) run.heads = 2;
  return run;
}

class OffloadEquality : public ::testing::TestWithParam<Layout> {};

TEST_P(OffloadEquality, EqualsOneRankInFp64) {
  const Layout& layout = GetParam();
  const Reference& reference = layout.tp > 1 ? ([&]() -> const Reference& {
    static const Reference two_heads = ReferenceOf({.heads = 2});
    return two_heads;
  })()
                                             : OneRank(layout.sgd);
  ExpectTrainsAlike(Train(RunOf(layout, reference.run)), reference.curve);
}

constexpr Recompute kFull = Recompute::kFull;

INSTANTIATE_TEST_SUITE_P(
    Layouts, OffloadEquality,
    ::testing::Values(
        // Each stage, the optimizer alone.
        Layout{.stage = 1, .world = 1}, Layout{.stage = 1, .world = 2},
        Layout{.stage = 1, .world = 3, .accumulation = 3}, Layout{.stage = 2, .world = 2, .accumulation = 3},
        Layout{.stage = 2, .world = 3, .sgd = true}, Layout{.stage = 2, .world = 1, .accumulation = 3, .sgd = true},
        Layout{.stage = 3, .world = 2}, Layout{.stage = 3, .world = 3, .accumulation = 3, .recompute = kFull},
        // A part of it.
        Layout{.stage = 3, .world = 1, .optimizer = 0.3},
        Layout{.stage = 3, .world = 2, .accumulation = 3, .optimizer = 0.3},
        Layout{.stage = 3, .world = 3, .optimizer = 0.3, .sgd = true},
        // The weights alone, with one rank too.
        Layout{.stage = 3, .world = 1, .optimizer = 0, .param = true},
        Layout{.stage = 3, .world = 1, .accumulation = 3, .optimizer = 0, .param = true, .sgd = true},
        Layout{.stage = 3, .world = 2, .optimizer = 0, .param = true},
        Layout{.stage = 3, .world = 3, .accumulation = 3, .optimizer = 0, .param = true, .recompute = kFull},
        // Both.
        Layout{.stage = 3, .world = 1, .param = true}, Layout{.stage = 3, .world = 2, .accumulation = 3, .param = true},
        Layout{.stage = 3, .world = 3, .param = true, .sgd = true},
        Layout{.stage = 3, .world = 2, .accumulation = 3, .optimizer = 0.3, .param = true},
        Layout{.stage = 3, .world = 1, .optimizer = 0.3, .param = true, .recompute = kFull},
        // With tensor and pipeline parallelism.
        Layout{.stage = 1, .world = 4, .accumulation = 3, .tp = 2},
        Layout{.stage = 3, .world = 2, .param = true, .tp = 2, .sequence_parallel = true},
        Layout{.stage = 3, .world = 2, .accumulation = 3, .optimizer = 0, .param = true, .tp = 2},
        Layout{.stage = 2, .world = 4, .accumulation = 3, .pp = 2},
        Layout{.stage = 1, .world = 2, .accumulation = 3, .pp = 2, .schedule = PipelineSchedule::kZeroBubble},
        Layout{.stage = 3, .world = 4, .accumulation = 3, .optimizer = 0.3, .pp = 2},
        Layout{.stage = 3, .world = 4, .accumulation = 3, .param = true, .pp = 2},
        Layout{.stage = 3, .world = 2, .accumulation = 3, .optimizer = 0, .param = true, .pp = 2},
        Layout{.stage = 3, .world = 4, .accumulation = 3, .param = true, .tp = 2, .pp = 2}),
    [](const auto& layout) {
      const Layout& l = layout.param;
      std::string name = "Zero" + std::to_string(l.stage) + "Ranks" + std::to_string(l.world) + "Accumulation" +
                         std::to_string(l.accumulation);
      if (l.optimizer > 0) name += l.optimizer < 1 ? "PartOfOptimizer" : "Optimizer";
      if (l.param) name += "Param";
      if (l.tp > 1) name += l.sequence_parallel ? "Tp2Sp" : "Tp2";
      if (l.pp > 1) name += l.schedule == PipelineSchedule::kZeroBubble ? "Pp2Zb" : "Pp2";
      if (l.recompute == kFull) name += "Recomputed";
      return name + (l.sgd ? "Sgd" : "AdamW");
    });

void ExpectBitwise(const TinyRun& offloaded, TinyRun plain) {
  plain.offload_optimizer = 0;
  plain.offload_param = false;
  const Curve want = Train(plain), got = Train(offloaded);
  ASSERT_EQ(want.failed, "");
  ASSERT_EQ(got.failed, "");
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.scales, want.scales);
  EXPECT_EQ(got.weights, want.weights);
  EXPECT_TRUE(got.replicas_equal);
}

TEST(Offload, Bf16IsBitwiseThatWithoutOffload) {
  const TinyRun bf16{
      .world = 2, .zero_stage = 3, .accumulation = 3, .steps = 6, .fp64 = false, .bf16 = true, .clip = 0.5};
  TinyRun run = bf16;
  run.offload_optimizer = 1;
  ExpectBitwise(run, bf16);
  run.offload_param = true;
  ExpectBitwise(run, bf16);
  run.offload_optimizer = 0;
  ExpectBitwise(run, bf16);
  run = bf16;
  run.zero_stage = 1;
  run.offload_optimizer = 1;
  ExpectBitwise(run, run);
}

// A skipped update leaves masters and weights as they were, on the host too.
TEST(Offload, SkippedStepsAreBitwiseThoseWithoutOffload) {
  TinyRun fp16{.world = 2, .zero_stage = 2, .accumulation = 3, .steps = 8, .fp64 = false};
  fp16.fp16 = true;
  fp16.initial_scale_power = 8;
  fp16.inject_overflow = {0, 3, 4};
  fp16.offload_optimizer = 1;
  ExpectBitwise(fp16, fp16);
  fp16.zero_stage = 3;
  fp16.offload_param = true;
  ExpectBitwise(fp16, fp16);
  fp16.offload_optimizer = 0;
  ExpectBitwise(fp16, fp16);
}

// States in files are streamed in chunks: bitwise the update in memory, skipped steps and evaluations included.
TEST(Offload, NvmeIsBitwiseHostMemory) {
  const Folder temporary;
  const std::string folder = temporary.path;
  TinyRun fp16{.world = 2, .zero_stage = 2, .accumulation = 3, .steps = 6, .fp64 = false};
  fp16.fp16 = true;
  fp16.initial_scale_power = 8;
  fp16.inject_overflow = {0, 3};
  fp16.offload_optimizer = 1;
  fp16.nvme = folder;
  ExpectBitwise(fp16, fp16);
  TinyRun fp64{.world = 2, .zero_stage = 3, .steps = 6, .evaluates = true, .offload_optimizer = 0.3};
  fp64.offload_param = true;
  fp64.nvme = folder;
  ExpectBitwise(fp64, fp64);
  fp64.offload_optimizer = 1;
  ExpectBitwise(fp64, fp64);
  fp64.sgd = true;
  ExpectBitwise(fp64, fp64);
}

// Masters and moments are saved from where they are and loaded to where the next run wants them.
TEST(Offload, CKP_29_ResumesWithOffloadOnAndOff) {
  const Folder temporary;
  const std::string folder = temporary.path;
  const TinyRun whole{.world = 2, .zero_stage = 2, .steps = 6, .fp64 = false, .bf16 = true, .clip = 0.5};
  const Curve want = Train(whole);
  struct Place {
    const char* name;
    double optimizer;
    bool param, nvme;
    int stage;
  };
  const Place places[] = {{"none", 0, false, false, 2},
                          {"host", 1, false, false, 2},
                          {"disk", 1, false, true, 2},
                          {"all on the host", 1, true, false, 3},
                          {"all on the disk", 1, true, true, 3}};
  const auto run_at = [&](const Place& place) {
    TinyRun run = whole;
    run.zero_stage = place.stage;
    run.offload_optimizer = place.optimizer;
    run.offload_param = place.param;
    if (place.nvme) run.nvme = folder;
    return run;
  };
  for (size_t from = 0; from < std::size(places); ++from) {
    const Place &before = places[from], &after = places[(from + 1) % std::size(places)];
    SCOPED_TRACE(std::string(before.name) + " to " + after.name);
    const std::string saved = folder + "/" + std::to_string(from);
    TinyRun first = run_at(before), rest = run_at(after);
    first.steps = 3;
    first.save = rest.load = saved;
    ASSERT_EQ(Train(first).failed, "");
    const Curve got = Train(rest);
    ASSERT_EQ(got.failed, "");
    EXPECT_EQ(got.losses, std::vector<double>(want.losses.begin() + 3, want.losses.end()));
    EXPECT_EQ(got.weights, want.weights);
  }
}

TEST(Offload, EvaluationsLeaveTrainingAsItIs) {
  TinyRun run{
      .world = 2, .zero_stage = 3, .accumulation = 3, .steps = 6, .offload_optimizer = 1, .offload_param = true};
  const Curve want = Train(run);
  run.evaluates = true;
  const Curve got = Train(run);
  ASSERT_EQ(got.failed, "");
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.weights, want.weights);
}

// The updates of the last step may be on their way still, on the host and up.
TEST(Offload, ACheckpointIsLoadedIntoARunningTrainer) {
  const Folder folder;
  for (const double ratio : {0.0, 1.0}) {
    TinyRun run{.zero_stage = 1, .steps = 6, .offload_optimizer = ratio};
    std::vector<double> first, again;
    const std::string failed = RunThreadRanks(1, [&](ThreadRank& self) {
      RankWorld world;
      world.world = self.MakeCommunicator("world");
      world.make_group = self.GroupMaker();
      Trainer trainer(SetupOf(run, 0), std::move(world));
      trainer.InitialiseWeights(7);
      const auto train = [&](std::vector<double>& losses) {
        for (int step = 0; step < 3; ++step) {
          trainer.StartStep(SyntheticFill(trainer));
          losses.push_back(trainer.FinishStep().loss);
        }
      };
      std::vector<double> before;
      train(before);
      const std::filesystem::path root = folder.path / std::to_string(ratio);
      trainer.Save(root, std::nullopt);
      train(first);
      trainer.Load(root);
      train(again);
      trainer.executor().Drain();
    });
    EXPECT_EQ(failed, "");
    EXPECT_EQ(first, again);
  }
}

}  // namespace
}  // namespace trireme::test
