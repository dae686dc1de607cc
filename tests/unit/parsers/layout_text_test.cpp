// What is written as a layout parses to that layout, and everything else stays what it was.
#include "parsers/layout_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "config_testing.h"
#include "engine/base/error.h"
#include "engine/base/file.h"

namespace trireme {
namespace {

using testing::Contains;
using testing::Parse;

const std::set<std::string> kLayoutKeys = {"train_micro_batch_size_per_gpu",
                                           "gradient_accumulation_steps",
                                           "data_parallel_size",
                                           "tensor_parallel.tp_size",
                                           "pipeline_parallel.pp_size",
                                           "trireme.recompute",
                                           "trireme.sequence_parallel",
                                           "pipeline.activation_checkpoint_interval",
                                           "activation_checkpointing.number_checkpoints",
                                           "zero_optimization.stage",
                                           "zero_optimization.overlap_comm",  // its default goes by the stage
                                           "zero_optimization.allgather_bucket_size",
                                           "zero_optimization.prefetch_bucket_size",
                                           "zero_optimization.stage3_prefetch_bucket_size"};

// Resolved values of all keys but those of a layout.
std::map<std::string, std::string> Others(const Config& config) {
  std::map<std::string, std::string> values;
  for (const Origin& origin : config.origins) {
    const bool layout = kLayoutKeys.contains(origin.key) || Contains(origin.key, "offload") ||
                        Contains(origin.key, "trireme.pipeline.") || Contains(origin.key, "model_parallel_size") ||
                        Contains(origin.key, "model-parallel-size") || Contains(origin.key, "pipe") ||
                        Contains(origin.key, "tensor_parallel.") || origin.key == "allgather_size";
    if (!layout) values[origin.key] = origin.value;
  }
  return values;
}

void ExpectLayout(const Config& want, const Config& got) {
  EXPECT_EQ(want.batch.train_batch_size, got.batch.train_batch_size);
  EXPECT_EQ(want.batch.train_micro_batch_size_per_gpu, got.batch.train_micro_batch_size_per_gpu);
  EXPECT_EQ(want.batch.gradient_accumulation_steps, got.batch.gradient_accumulation_steps);
  EXPECT_EQ(want.tensor_parallel.tp_size, got.tensor_parallel.tp_size);
  EXPECT_EQ(want.tensor_parallel.sequence_parallel, got.tensor_parallel.sequence_parallel);
  EXPECT_EQ(want.pipeline_parallel.pp_size, got.pipeline_parallel.pp_size);
  EXPECT_EQ(want.pipeline_parallel.virtual_stages, got.pipeline_parallel.virtual_stages);
  EXPECT_EQ(want.pipeline_parallel.schedule, got.pipeline_parallel.schedule);
  EXPECT_EQ(want.pipeline_parallel.partition, got.pipeline_parallel.partition);
  EXPECT_EQ(want.recompute.runs, got.recompute.runs);
  EXPECT_EQ(0, got.recompute.layers_per_checkpoint);
  const ZeroConfig &zero = want.zero_optimization, &of_text = got.zero_optimization;
  EXPECT_EQ(zero.zero_stage, of_text.zero_stage);
  EXPECT_EQ(zero.offload_optimizer.device, of_text.offload_optimizer.device);
  EXPECT_EQ(zero.offload_param.device, of_text.offload_param.device);
  if (zero.offload_optimizer.device != OffloadDevice::kNone) {
    EXPECT_EQ(zero.offload_optimizer.ratio, of_text.offload_optimizer.ratio);
  }
  if (zero.zero_stage == 3) {
    EXPECT_EQ(zero.stage3_prefetch_bucket_size, of_text.stage3_prefetch_bucket_size);
  }
}

// Layouts of eight ranks as different as they come.
std::vector<Config> OtherLayouts(const Config& config) {
  std::vector<Config> others;
  for (const int variant : {0, 1, 2, 3}) {
    Config to = config;
    to.tensor_parallel = {variant == 1 ? 2 : 1, variant == 1};
    to.pipeline_parallel.pp_size = variant == 2 ? 4 : 1;
    to.pipeline_parallel.virtual_stages = variant == 2 ? 2 : 1;
    to.pipeline_parallel.schedule =
        variant == 1 ? PipelineSchedule::kZeroBubble : PipelineSchedule::kOneForwardOneBackward;
    if (variant == 2) to.pipeline_parallel.partition = "time";
    to.dp_size = 8 / to.tensor_parallel.tp_size / to.pipeline_parallel.pp_size;
    to.batch.train_micro_batch_size_per_gpu = 1;
    to.batch.gradient_accumulation_steps = to.batch.train_batch_size / to.dp_size;
    to.recompute = {};
    to.recompute.runs = variant == 3
                            ? std::vector<RecomputeRun>{{Recompute::kFull, 3}, {Recompute::kCheap, 1}}
                            : std::vector<RecomputeRun>{{variant == 2 ? Recompute::kCheap : Recompute::kNone, 0}};
    ZeroConfig& zero = to.zero_optimization;
    zero.zero_stage = variant == 3 ? 3 : variant == 1 ? 2 : 1;
    zero.offload_param.device = OffloadDevice::kNone;
    zero.offload_optimizer.device = variant == 3 ? OffloadDevice::kCpu : OffloadDevice::kNone;
    zero.offload_optimizer.ratio = variant == 3 ? 0.375 : 1;
    if (variant == 3) zero.stage3_prefetch_bucket_size = 12345;
    others.push_back(to);
  }
  return others;
}

void ExpectRoundTrips(const std::string& text, const ParseResult& parsed) {
  for (const Config& to : OtherLayouts(parsed.config)) {
    const std::string written = WithLayoutKeys(text, "ds.json", parsed.config, to);
    const ParseResult again = Parse(written, 8);
    // What a file says beside its layout may not go with every stage.
    const std::vector<std::string> errors = testing::ErrorKeys(again);
    if (errors == std::vector<std::string>{"CFG038 prescale_gradients"}) continue;
    ASSERT_FALSE(again.diagnostics.HasErrors()) << again.diagnostics.Render() << written;
    ExpectLayout(to, again.config);
    const std::map<std::string, std::string> after = Others(again.config);
    for (const auto& [key, value] : Others(parsed.config)) {
      ASSERT_TRUE(after.contains(key)) << key << "\n" << written;
      EXPECT_EQ(value, after.at(key)) << key << "\n" << written;
    }
    EXPECT_EQ(written, WithLayoutKeys(written, "ds.json", again.config, to));
  }
}

TEST(LayoutText, OtherSpellingsOfTheKeysGo) {
  const std::string text = R"(
  // of a colleague
  train_batch_size: 64, "model_parallel_size": 2, "pipe-parallel-size": 2, "data_parallel_size": 2,
  gradient_accumulation_steps: "auto"
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": 1e-05, "betas": [0.9, 0.95], "weight_decay": 3e-7}},
  "pipeline": {"stages": 2, "activation_checkpoint_interval": 2, "partition": "best"},
  "tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 2, "tp_grain_size": 1}},
  "zero_optimization": {"stage": 1, "allgather_bucket_size": 1000, "cpu_offload": true, "prefetch_bucket_size": 7},
  "activation_checkpointing": {"number_checkpoints": 4, "cpu_checkpointing": true},
  "_note": {"team": "a \"quoted\" name\\", "list": [[1, 2], {"x": null}]},
  "bf16": {"enabled": true})";
  const ParseResult parsed = Parse(text, 8);
  ASSERT_FALSE(parsed.diagnostics.HasErrors()) << parsed.diagnostics.Render();
  ExpectRoundTrips(text, parsed);
  const std::string written = WithLayoutKeys(text, "ds.json", parsed.config, OtherLayouts(parsed.config)[1]);
  for (const char* kept : {"1e-05", "3e-7", R"("a \"quoted\" name\\")", "\"partition\": \"best\"", "\"tp_grain_size\"",
                           "\"cpu_checkpointing\": true", "\"train_batch_size\": 64"}) {
    EXPECT_TRUE(Contains(written, kept)) << kept << "\n" << written;
  }
  for (const char* gone : {"autotp_size", "model_parallel_size", "pipe-parallel-size", "number_checkpoints",
                           "steps\": \"auto\"", "cpu_offload\"", "activation_checkpoint_interval"}) {
    EXPECT_FALSE(Contains(written, gone)) << gone << "\n" << written;
  }
}

TEST(LayoutText, TheOldFormOfASectionBecomesTheNewOne) {
  const std::string text = R"({"train_batch_size": 64, "zero_optimization": true, "allgather_size": 1001})";
  const ParseResult parsed = Parse(text, 8);
  ASSERT_FALSE(parsed.diagnostics.HasErrors()) << parsed.diagnostics.Render();
  ExpectRoundTrips(text, parsed);
}

// Below stage 3 "nvme" without a folder is the host's memory; at stage 3 it is an error.
TEST(LayoutText, ADeviceThatIsNotMeantGoes) {
  const std::string text = R"({"train_batch_size": 64, "zero_optimization":
      {"stage": 2, "offload_optimizer": {"device": "nvme"}}})";
  const ParseResult parsed = Parse(text, 8);
  Config to = parsed.config;
  ASSERT_EQ(OffloadDevice::kCpu, to.zero_optimization.offload_optimizer.device);
  to.zero_optimization.zero_stage = 3;
  const ParseResult again = Parse(WithLayoutKeys(text, "ds.json", parsed.config, to), 8);
  EXPECT_FALSE(again.diagnostics.HasErrors()) << again.diagnostics.Render();
  ExpectLayout(to, again.config);
}

// It would choose again, and something else perhaps.
TEST(LayoutText, FillGivesWayToALayout) {
  const std::string text = R"({"train_batch_size": 64, "trireme": {"fill": true}})";
  const ParseResult parsed = Parse(text, 8);
  ASSERT_TRUE(parsed.config.trireme.fill);
  for (const Config& to : {parsed.config, OtherLayouts(parsed.config)[3]}) {
    const ParseResult again = Parse(WithLayoutKeys(text, "ds.json", parsed.config, to), 8);
    EXPECT_FALSE(again.config.trireme.fill);
    ExpectLayout(to, again.config);
  }
}

// What the text says of its pipeline, and another layout does not, is not left there: `from` may stand in for it.
TEST(LayoutText, ThePipelineOfTheTextGivesWay) {
  const std::string text = R"({"train_batch_size": 64, "pipeline_parallel": {"pp_size": 2}, "trireme": {"pipeline":
      {"virtual_stages": 2, "schedule": "zero-bubble", "partition": "layers:0,1,2,3"}}})";
  const ParseResult stand_in = Parse(R"({"train_batch_size": 64})", 8);
  for (const Config& to : {stand_in.config, OtherLayouts(stand_in.config)[2]}) {
    const ParseResult again = Parse(WithLayoutKeys(text, "ds.json", stand_in.config, to), 8);
    EXPECT_FALSE(again.diagnostics.HasErrors()) << again.diagnostics.Render();
    ExpectLayout(to, again.config);
  }
}

TEST(LayoutText, WhatIsNotThereIsNotAdded) {
  const std::string text = R"({"train_batch_size": 8})";
  Config to = Parse(text, 8).config;
  EXPECT_EQ(
      "{\n  \"train_batch_size\": 8,\n  \"train_micro_batch_size_per_gpu\": 1,\n  \"gradient_accumulation_steps\": "
      "1\n}\n",
      WithLayoutKeys(text, "ds.json", to, to));
}

TEST(LayoutText, KeysCanBeSetOneByOne) {
  const std::string text = R"({"train_batch_size": 64, "autotp": 1, "tensor_parallel": {"autotp_size": 2}, // tp
      "pipeline": {"activation_checkpoint_interval": 4}, "zero_optimization": {"cpu_offload": true, "stage": 2}})";
  const std::vector<std::string> keys = {"tensor_parallel.tp_size=4", "trireme.recompute=full:3,cheap:2",
                                         "zero_optimization.offload_optimizer.device=cpu", "zero_optimization.stage=3",
                                         "zero_optimization.offload_optimizer.ratio=0.25"};
  const ParseResult parsed = Parse(WithKeys(text, "ds.json", keys), 8);
  ASSERT_FALSE(parsed.diagnostics.HasErrors()) << parsed.diagnostics.Render();
  EXPECT_EQ(4, parsed.config.tensor_parallel.tp_size);
  EXPECT_EQ((std::vector<RecomputeRun>{{Recompute::kFull, 3}, {Recompute::kCheap, 2}}), parsed.config.recompute.runs);
  EXPECT_EQ(3, parsed.config.zero_optimization.zero_stage);
  EXPECT_EQ(0.25, parsed.config.zero_optimization.offload_optimizer.ratio);
  EXPECT_EQ("[1", WithKeys("[1", "ds.json", keys)) << "the parser says what is wrong";
  for (const char* wrong : {"stage", "=1", "zero_optimization.stage="}) {
    EXPECT_THROW(WithKeys(text, "ds.json", std::vector<std::string>{wrong}), Error) << wrong;
  }
}

// Whatever loads on eight ranks, of what people wrote.
TEST(LayoutText, FilesOfTheCorpusKeepWhatIsNoLayout) {
  const std::filesystem::path corpus = std::filesystem::path(TRIREME_SOURCE_DIR) / "tests/compat/parsers/corpus";
  int loaded = 0;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    if (entry.path().extension() != ".json") continue;
    const std::string text = ReadFile(entry.path(), ErrorCode::kConfig);
    const ParseResult parsed = Parse(text, 8);
    if (parsed.diagnostics.HasErrors() || parsed.config.batch.train_batch_size % 8 != 0) continue;
    SCOPED_TRACE(entry.path().filename());
    ++loaded;
    ExpectRoundTrips(text, parsed);
  }
  EXPECT_GE(loaded, 10);
}

}  // namespace
}  // namespace trireme
