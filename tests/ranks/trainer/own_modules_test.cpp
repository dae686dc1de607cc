// Modules of the user's train like any other unit: every layout like one rank in double precision, resumed runs
// bitwise.
#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <filesystem>

#include "engine/base/error.h"
#include "engine/comm/backends.h"
#include "engine/trainer/inference_model.h"
#include "tests/ranks/trainer/trains_alike.h"

namespace trireme::test {
namespace {

using at::Tensor;

constexpr int64_t kHidden = 24, kVocab = 61;  // of TinyRun

// Values that ranks other than 0 get wrong, so that only a broadcast makes the run right.
Tensor Values(int rank, double seed, at::IntArrayRef shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return ((at::arange(count, at::kDouble) * seed + seed).sin() * 0.2 + rank).view(shape);
}

// A table and a turn of it: its backward pass reads weights.
struct Embedding : torch::nn::Module {
  explicit Embedding(int rank) {
    table = register_parameter("table", Values(rank, 1.7, {kVocab, kHidden}));
    turn = register_parameter("turn", Values(rank, 2.3, {kHidden, kHidden}));
  }
  Tensor forward(const Tensor& ids) { return at::linear(at::embedding(table, ids), turn).tanh(); }
  Tensor table, turn;
};

// A gated layer that looks back through a running mean. One parameter is used twice, one not at all.
struct Block : torch::nn::Module {
  Block(int rank, double seed, double dropout_probability) : dropout(dropout_probability) {
    scale = register_parameter("scale", Values(rank, seed, {kHidden}) + 1);
    gate = register_parameter("gate", Values(rank, seed + 0.1, {2 * kHidden, kHidden}));
    down = register_parameter("down", Values(rank, seed + 0.2, {kHidden, 2 * kHidden}));
    unused = register_parameter("unused", Values(rank, seed, {5}));
    step = register_buffer("step", at::arange(1, 12, at::kDouble).view({1, 11, 1}) + rank);
  }
  Tensor forward(const Tensor& x) {
    const Tensor mean = x.cumsum(1) / step * scale;
    const Tensor wide = at::linear(mean, gate).sigmoid() * at::linear(x * scale, gate);
    return x + at::dropout(at::linear(wide, down), dropout, is_training());
  }
  Tensor scale, gate, down, unused, step;
  double dropout;
};

struct Head : torch::nn::Module {
  explicit Head(int rank) {
    weight = register_parameter("weight", Values(rank, 3.1, {kVocab, kHidden}));
    bias = register_parameter("bias", Values(rank, 0.7, {kVocab}));
  }
  Tensor forward(const Tensor& x) { return at::linear(x, weight, bias); }
  Tensor weight, bias;
};

OwnModules Blocks(int rank, double dropout = 0) {
  OwnModules modules;
  for (const double seed : {1.1, 1.3, 1.9}) modules.blocks.push_back(Own(std::make_shared<Block>(rank, seed, dropout)));
  return modules;
}

OwnModules All(int rank, double dropout = 0) {
  OwnModules modules = Blocks(rank, dropout);
  modules.embedding = Own(std::make_shared<Embedding>(rank), "words");
  modules.head = Own(std::make_shared<Head>(rank));
  return modules;
}

// A layer of the user's between two of the family's, and one without parameters.
OwnModules Between(int rank) {
  OwnModules modules = Blocks(rank);
  modules.blocks[0] = {};
  modules.blocks[2] = {nullptr, [](const Tensor& x) { return x * 0.5; }, ""};
  return modules;
}

OwnModules Ends(int rank) {
  OwnModules modules = All(rank);
  modules.blocks.clear();
  return modules;
}

const std::map<std::string, std::function<OwnModules(int)>> kModels = {
    {"All", [](int rank) { return All(rank); }},
    {"Blocks", [](int rank) { return Blocks(rank); }},
    {"Between", Between},
    {"Ends", Ends}};

TinyRun RunOf(const std::string& model) {
  TinyRun run;
  run.modules = kModels.at(model);
  run.accumulation = 3;
  run.steps = 6;
  run.clip = 0.5;
  run.bucket = 1500;
  return run;
}

const Curve& OneRank(const std::string& model) {
  static std::map<std::string, Curve> curves;
  if (!curves.contains(model)) curves[model] = Train(RunOf(model));
  return curves[model];
}

class OwnModulesEquality : public ::testing::TestWithParam<std::tuple<std::string, int, int, bool>> {};

TEST_P(OwnModulesEquality, EqualsOneRankInFp64) {
  const auto [model, stage, world, recompute] = GetParam();
  const Curve& want = OneRank(model);
  ASSERT_EQ(want.failed, "");
  EXPECT_LT(want.losses.back(), want.losses.front());
  TinyRun run = RunOf(model);
  run.world = world;
  run.zero_stage = stage;
  run.recompute = recompute ? Recompute::kFull : Recompute::kNone;
  ExpectTrainsAlike(Train(run), want);
}

std::string CaseName(const ::testing::TestParamInfo<OwnModulesEquality::ParamType>& info) {
  const auto& [model, stage, world, recompute] = info.param;
  return model + "_zero" + std::to_string(stage) + "_ranks" + std::to_string(world) + (recompute ? "_recompute" : "");
}
INSTANTIATE_TEST_SUITE_P(All, OwnModulesEquality,
                         ::testing::Combine(::testing::Values("All"), ::testing::Range(0, 4), ::testing::Range(1, 4),
                                            ::testing::Bool()),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Mixed, OwnModulesEquality,
                         ::testing::Combine(::testing::Values("Blocks", "Between", "Ends"), ::testing::Range(0, 4),
                                            ::testing::Values(2), ::testing::Bool()),
                         CaseName);

TEST(OwnModules, OneBucketForTheWholeModelEqualsMany) {
  TinyRun run = RunOf("All");
  run.world = 2;
  run.zero_stage = 3;
  run.bucket = 1'000'000;
  ExpectTrainsAlike(Train(run), OneRank("All"));
}

TEST(OwnModules, EvaluationChangesNothing) {
  TinyRun run = RunOf("All");
  run.world = 2;
  run.zero_stage = 3;
  const Curve without = Train(run);
  run.evaluates = true;
  ExpectTrainsAlike(Train(run), without, {0, 0, 0});
}

TEST(OwnModules, Bf16FollowsFp64) {
  for (const int stage : {0, 2, 3}) {
    TinyRun run = RunOf("All");
    run.fp64 = false;
    run.bf16 = true;
    run.world = 2;
    run.zero_stage = stage;
    const Curve got = Train(run);
    ASSERT_EQ(got.failed, "");
    EXPECT_LE(RelativeDifference(got.losses, OneRank("All").losses), 1e-2) << stage;
    EXPECT_TRUE(got.replicas_equal);
  }
}

// Dropout inside a module: what autograd kept and what is made anew draw the same mask, and another step another one.
TEST(OwnModules, DropoutIsTheSameUnderRecomputation) {
  for (const int world : {1, 2}) {
    TinyRun run = RunOf("All");
    run.modules = [](int rank) { return All(rank, 0.3); };
    run.world = world;
    run.zero_stage = 3;
    const Curve kept = Train(run);
    run.recompute = Recompute::kFull;
    ExpectTrainsAlike(Train(run), kept, {0, 0, 0});
    EXPECT_GT(RelativeDifference(kept.losses, OneRank("All").losses), 1e-6);
  }
}

// Skipped where there is no GPU: autograd's threads and streams.
TEST(GpuOwnModules, OneRankEqualsTheCpuInFp64) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU, or a program without GPU code";
  for (const bool recompute : {false, true}) {
    TinyRun run = RunOf("All");
    run.recompute = recompute ? Recompute::kFull : Recompute::kNone;
    RankWorld place;
    place.device = at::Device(at::kCUDA, 0);
    place.world = MakeNcclCommunicator(nullptr, {0}, 0, "world");
    Trainer trainer(SetupOf(run), std::move(place));
    Curve got;
    TrainRank(run, trainer, got.losses, got.norms);
    Collect(trainer, got.weights);
    ExpectTrainsAlike(got, OneRank("All"));
  }
}

class OwnModulesCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("trireme_own_" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(OwnModulesCheckpoint, ResumedRunIsBitwiseWithDropout) {
  TinyRun run = RunOf("All");
  run.modules = [](int rank) { return All(rank, 0.3); };
  run.world = 2;
  run.zero_stage = 2;
  const Curve straight = Train(run);
  TinyRun first = run, second = run;
  first.steps = 3;
  first.save = folder_;
  second.load = folder_;
  ASSERT_EQ(Train(first).failed, "");
  const Curve resumed = Train(second);
  ASSERT_EQ(resumed.failed, "");
  EXPECT_EQ(resumed.losses, std::vector<double>(straight.losses.begin() + 3, straight.losses.end()));
  EXPECT_EQ(WeightDifference(resumed.weights, straight.weights), 0);
}

TEST_F(OwnModulesCheckpoint, AnotherLayoutGoesOn) {
  TinyRun first = RunOf("Between"), second = RunOf("Between");
  first.steps = 3;
  first.world = 2;
  first.zero_stage = 3;
  first.save = folder_;
  second.world = 3;
  second.zero_stage = 1;
  second.load = folder_;
  ASSERT_EQ(Train(first).failed, "");
  const Curve resumed = Train(second);
  ASSERT_EQ(resumed.failed, "");
  EXPECT_LE(WeightDifference(resumed.weights, OneRank("Between").weights), 1e-12);
  EXPECT_TRUE(resumed.weights.contains("modules.2.gate"));
}

TEST_F(OwnModulesCheckpoint, ProgramsWithoutTheModulesRefuseIt) {
  TinyRun run = RunOf("All");
  run.steps = 1;
  run.save = folder_;
  ASSERT_EQ(Train(run).failed, "");
  TinyRun family;
  family.load = folder_;
  EXPECT_NE(Train(family).failed.find("own_modules was true and is false"), std::string::npos);
  try {
    OpenModelFolder(folder_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.id(), "OWN004") << error.what();
  }
}

}  // namespace
}  // namespace trireme::test
