// The same weights, tokens and config file give the curve of the real DeepSpeed (tests/compat/fixtures).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/reader.h"
#include "parsers/cli.h"
#include "parsers/model_config.h"
#include "tests/ranks/trainer/tiny_run.h"
#include "tests/support/run_threads.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
const fs::path kFixtures = TRIREME_FIXTURES;

nlohmann::json ReadJson(const fs::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

struct Followed {
  std::string failed;
  std::vector<StepResult> steps;
  std::vector<double> lr;
  Weights weights;
  bool replicas_equal = true;
  PlanDTypes dtypes;
};

bool SixteenBit(const std::string& name) { return name.starts_with("bf16") || name.starts_with("fp16"); }

// Ranks that take the trace's batches: DeepSpeed's own cut, or another one.
struct Layout {
  int64_t tp = 1, pp = 1, dp = 1, virtual_stages = 1;
  int zero_stage = -1;  // -1: the config's
  bool sequence_parallel = false;
  bool offload = true;  // where the config says so
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
};

Layout LayoutOf(const nlohmann::json& expected) {
  const int64_t pp = expected.value("pipe", int64_t{1});
  return {.pp = pp, .dp = expected["world"].get<int64_t>() / pp};
}

Config ConfigOf(const std::string& name, const Layout& layout, int64_t replicas, int64_t hidden_size) {
  TrainFlags flags;
  flags.tensor_model_parallel_size = layout.tp;
  flags.pipeline_model_parallel_size = layout.pp;
  flags.sequence_parallel = layout.sequence_parallel;
  nlohmann::json file = ReadJson(kFixtures / "traces" / name / "config.json");
  for (const char* key : {"offload_optimizer", "offload_param"}) {
    if (!layout.offload) file["zero_optimization"].erase(key);
  }
  ParseResult parsed = ParseConfigText(file.dump(1), name, flags, layout.tp * layout.pp * replicas, hidden_size);
  parsed.diagnostics.ThrowIfErrors();
  Config config = parsed.config;
  config.pipeline_parallel.virtual_stages = layout.virtual_stages;
  config.pipeline_parallel.schedule = layout.schedule;
  if (layout.zero_stage >= 0) config.zero_optimization.zero_stage = layout.zero_stage;
  if (layout.dp != replicas) {  // the same samples a step
    config.world_size = layout.tp * layout.pp * layout.dp;
    config.dp_size = layout.dp;
    config.batch.gradient_accumulation_steps = config.batch.gradient_accumulation_steps * replicas / layout.dp;
  }
  config.trireme.deepspeed_accumulation = SixteenBit(name);
  config.trireme.scale_growth_quirk = true;
  return config;
}

// Trains as `trireme train --no-shuffle --init-from ... --inject-overflow ...` does, on in-process ranks. 16-bit runs
// accumulate as DeepSpeed does, and take its quirk on the steps on which the loss scale grows.
Followed Follow(const std::string& name, const nlohmann::json& expected, const Layout& layout,
                std::vector<int64_t> inject = {}) {
  const int world = static_cast<int>(layout.tp * layout.pp * layout.dp);
  const int64_t steps = static_cast<int64_t>(expected["steps"].size());
  const fs::path initial = kFixtures / expected["initial"].get<std::string>();
  Followed followed;
  std::vector<std::unique_ptr<Trainer>> trainers(static_cast<size_t>(world));
  followed.failed = RunThreadRanks(world, [&](ThreadRank& self) {
    Diagnostics diagnostics;
    TrainerSetup setup;
    setup.model = ReadHuggingFaceConfig(initial, diagnostics);
    diagnostics.ThrowIfErrors();
    setup.config = ConfigOf(name, layout, LayoutOf(expected).dp, setup.model.hidden_size);
    setup.inject_overflow = inject;
    setup.model.padded_vocab_size = (setup.model.vocab_size + layout.tp - 1) / layout.tp * layout.tp;
    setup.sequence_length = expected["seq"];
    setup.train_iters = steps;
    setup.decay_all = expected["decay_all"];
    RankWorld place;
    place.rank = self.rank;
    place.world_size = world;
    place.world = self.MakeCommunicator("world");
    place.make_group = self.GroupMaker();
    trainers[static_cast<size_t>(self.rank)] = std::make_unique<Trainer>(setup, std::move(place));
    Trainer& trainer = *trainers[static_cast<size_t>(self.rank)];
    trainer.LoadHuggingFace(initial);
    const std::shared_ptr<const data::BatchSource> samples =
        data::OpenTrainingData({.data_path = kFixtures / expected["tokens"].get<std::string>(),
                                .seq_length = setup.sequence_length,
                                .vocab_size = setup.model.vocab_size,
                                .train_samples = steps * setup.config.batch.train_batch_size,
                                .no_shuffle = true})
            .train;
    for (int64_t step = 0; step < steps; ++step) {
      trainer.StartStep(trainer.FillFrom(samples, trainer.consumed_samples()));
      const StepResult result = trainer.FinishStep();
      if (self.rank != 0) continue;
      followed.steps.push_back(result);
      followed.lr.push_back(trainer.RatesOf(result.applied_steps - (result.skipped ? 0 : 1)).lr);
    }
    trainer.executor().Drain();
  });
  if (!followed.failed.empty()) return followed;
  for (auto& trainer : trainers) Collect(*trainer, followed.weights);
  for (auto& trainer : trainers)
    followed.replicas_equal = followed.replicas_equal && ReplicaEquals(*trainer, followed.weights);
  followed.dtypes = trainers[0]->plan().dtypes;
  return followed;
}

// The logical tensors of the trace's last step, in held order, against ours: L2, relative.
double FinalDifference(const std::string& name, const nlohmann::json& expected, const Weights& weights) {
  const auto reader =
      checkpoint::CheckpointReader::Open(kFixtures / "traces" / name / expected["final"].get<std::string>());
  Weights want;
  for (const checkpoint::TensorInfo& tensor : reader->tensors()) {
    const auto ours = weights.find(tensor.name);
    if (ours == weights.end()) continue;
    std::vector<float> values(ours->second.size());
    const bool conv1d = tensor.shape.size() == 2 && tensor.name.find(".h.") != std::string::npos;
    reader->ReadFlat(tensor.name, "model", 0, static_cast<int64_t>(values.size()),
                     std::as_writable_bytes(std::span(values)),
                     conv1d ? checkpoint::Order::kTransposed : checkpoint::Order::kRowMajor);
    want[tensor.name].assign(values.begin(), values.end());
  }
  return WeightDifference(weights, want);
}

struct Worst {
  double loss = 0, norm = 0;  // relative
};

Worst WorstOf(const std::vector<StepResult>& steps, const nlohmann::json& expected) {
  Worst worst;
  for (size_t step = 0; step < steps.size(); ++step) {
    const nlohmann::json& want = expected["steps"][step];
    const double loss = want["loss"];
    worst.loss = std::max(worst.loss, std::abs(steps[step].loss - loss) / loss);
    if (want["grad_norm"].is_null()) continue;
    const double norm = want["grad_norm"];
    worst.norm = std::max(worst.norm, std::abs(steps[step].grad_norm - norm) / norm);
  }
  return worst;
}

std::vector<std::string> TraceNames() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFixtures / "traces")) {
    if (fs::exists(entry.path() / "expected.json")) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class DeepSpeedTrace : public ::testing::TestWithParam<std::string> {};

TEST_P(DeepSpeedTrace, IsFollowed) {
  const std::string name = GetParam();
  const nlohmann::json expected = ReadJson(kFixtures / "traces" / name / "expected.json");
  const bool bf16 = name.starts_with("bf16"), fp16 = name.starts_with("fp16");
  // DeepSpeed's other fp16 wrapper at stage 0 does not scale the loss, yet unscales the gradients, and Adam starts at
  // its second step there: only what becomes of the scale can be followed.
  const bool follows_values = !(fp16 && name.ends_with("zero0"));
  const std::vector<int64_t> inject = expected.value("inject", std::vector<int64_t>());
  const Followed got = Follow(name, expected, LayoutOf(expected), inject);
  ASSERT_EQ(got.failed, "");
  ASSERT_GE(got.steps.size(), 50u);
  const double loss_tolerance = bf16 ? 1e-4 : (fp16 ? 3e-5 : 2e-6);
  const Worst worst = WorstOf(got.steps, expected);
  for (size_t step = 0; step < got.steps.size(); ++step) {
    const nlohmann::json& want = expected["steps"][step];
    EXPECT_EQ(got.lr[step], want["lr"].get<double>()) << "step " << step;
    EXPECT_EQ(got.steps[step].skipped_steps, want["skipped"].get<int64_t>()) << "step " << step;
    if (fp16) {
      EXPECT_EQ(got.steps[step].loss_scale, want["loss_scale"].get<double>()) << "step " << step;
    }
  }
  if (follows_values) {
    EXPECT_LE(worst.loss, loss_tolerance);
  }
  if (fp16 && follows_values && !name.ends_with("zero3")) {  // stage 3 reports half of it where the scale doubles
    EXPECT_LE(worst.norm, 2e-3);
  }
  if (!SixteenBit(name)) {
    EXPECT_LE(worst.norm, 5e-6);
  }
  EXPECT_TRUE(got.replicas_equal);
  if (!expected["final"].is_null()) {
    const double difference = FinalDifference(name, expected, got.weights);
    RecordProperty("final_weights", std::to_string(difference));
    // Lion's step is a sign: where the momentum is all but zero a rounding turns it, which is 2 lr in that element.
    EXPECT_LE(difference, SixteenBit(name) ? 5e-3 : (name.starts_with("lion") ? 3e-4 : 1e-5));
  }
  std::printf("%-28s loss %.1e  norm %.1e  (compute %s, gradients %s over %s)\n", name.c_str(), worst.loss, worst.norm,
              std::string(Name(got.dtypes.compute)).c_str(), std::string(Name(got.dtypes.accumulate)).c_str(),
              std::string(Name(got.dtypes.communicate)).c_str());
}

// Where DeepSpeed ends with an exception, the run ends with an error that has the step, the scale and what to do.
TEST(DeepSpeedFloor, AnOverflowAtTheSmallestScaleEndsTheRun) {
  for (const char* name : {"fp16_floor_zero1", "fp16_floor_zero2", "fp16_floor_zero3"}) {
    const nlohmann::json expected = ReadJson(kFixtures / "traces" / name / "expected.json");
    std::vector<int64_t> inject = expected["inject"];
    inject.push_back(expected["raises"]);
    const Followed got = Follow(name, expected, LayoutOf(expected), inject);
    EXPECT_NE(got.failed.find("TRN007"), std::string::npos) << got.failed;
    EXPECT_NE(got.failed.find("step 46"), std::string::npos) << got.failed;
    EXPECT_NE(got.failed.find("with the loss scale at 4"), std::string::npos) << got.failed;
    EXPECT_EQ(got.steps.size(), 46u) << name;
  }
}

// DeepSpeed's pipeline engine at pp 2 x dp 2 with ZeRO-1, followed by other cuts of the same batches.
struct NamedLayout {
  const char* name;
  Layout layout;
};
const NamedLayout kCuts[] = {
    {"OneRank", {}},
    {"Pp2Dp2Zero0", {.pp = 2, .dp = 2, .zero_stage = 0}},
    {"Pp2Dp2Zero2", {.pp = 2, .dp = 2, .zero_stage = 2}},
    {"Pp2Dp2Zero3ZeroBubble", {.pp = 2, .dp = 2, .zero_stage = 3, .schedule = PipelineSchedule::kZeroBubble}},
    {"Pp2", {.pp = 2}},
    {"Pp2V2", {.pp = 2, .virtual_stages = 2}},
    {"Pp4GPipe", {.pp = 4, .schedule = PipelineSchedule::kGPipe}},
    {"Pp4Dp2", {.pp = 4, .dp = 2}},
    {"Tp2Dp2", {.tp = 2, .dp = 2}},
    {"Tp4Sequence", {.tp = 4, .sequence_parallel = true}},
    {"Tp2Pp2Dp2Sequence", {.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true}},
    {"Tp2Pp2Zero3", {.tp = 2, .pp = 2, .dp = 2, .zero_stage = 3}},
};

class DeepSpeedPipelineTrace : public ::testing::TestWithParam<NamedLayout> {};

TEST_P(DeepSpeedPipelineTrace, IsFollowedByOtherCuts) {
  for (const std::string& name : TraceNames()) {
    if (!name.starts_with("pipe")) continue;
    const nlohmann::json expected = ReadJson(kFixtures / "traces" / name / "expected.json");
    const Followed got = Follow(name, expected, GetParam().layout);
    ASSERT_EQ(got.failed, "") << name;
    ASSERT_EQ(got.steps.size(), 50u);
    const Worst worst = WorstOf(got.steps, expected);
    EXPECT_LE(worst.loss, 2e-6) << name;
    EXPECT_LE(worst.norm, 5e-6) << name;
    EXPECT_LE(FinalDifference(name, expected, got.weights), 1e-5) << name;
    EXPECT_TRUE(got.replicas_equal) << name;
  }
}

// DeepSpeed's runs whose optimizer, and at stage 3 whose weights, are on the CPU, by runs that offload nothing.
TEST(DeepSpeedOffloadTrace, IsFollowedWithoutOffload) {
  for (const char* name : {"offload_cpu_zero2", "offload_cpu_zero3"}) {
    const nlohmann::json expected = ReadJson(kFixtures / "traces" / name / "expected.json");
    Layout layout = LayoutOf(expected);
    layout.offload = false;
    const Followed got = Follow(name, expected, layout);
    ASSERT_EQ(got.failed, "") << name;
    const Worst worst = WorstOf(got.steps, expected);
    EXPECT_LE(worst.loss, 2e-6) << name;
    EXPECT_LE(worst.norm, 5e-6) << name;
    EXPECT_LE(FinalDifference(name, expected, got.weights), 1e-5) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, DeepSpeedPipelineTrace, ::testing::ValuesIn(kCuts),
                         [](const auto& cut) { return std::string(cut.param.name); });

// LAMB's norms are of whole tensors, so that the trace at stage 0 is that of every stage and cut.
TEST(LambTrace, IsFollowedByOtherCuts) {
  for (const char* name : {"lamb_zero0", "lamb_bounds_zero0"}) {
    const nlohmann::json expected = ReadJson(kFixtures / "traces" / name / "expected.json");
    for (const Layout& layout :
         {Layout{}, Layout{.dp = 2, .zero_stage = 1}, Layout{.dp = 2, .zero_stage = 2},
          Layout{.dp = 2, .zero_stage = 3}, Layout{.tp = 2, .pp = 2, .dp = 2, .zero_stage = 2}}) {
      const Followed got = Follow(name, expected, layout);
      ASSERT_EQ(got.failed, "");
      EXPECT_LE(WorstOf(got.steps, expected).loss, 2e-6) << name << " ZeRO-" << layout.zero_stage;
      EXPECT_LE(FinalDifference(name, expected, got.weights), 1e-5) << name << " ZeRO-" << layout.zero_stage;
      EXPECT_TRUE(got.replicas_equal);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Traces, DeepSpeedTrace, ::testing::ValuesIn(TraceNames()),
                         [](const auto& trace) { return trace.param; });

}  // namespace
}  // namespace trireme::test
