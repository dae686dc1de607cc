// What files of other programs say otherwise than DeepSpeed: parallel sizes, gpt-neox's top level, base64; and flags
// that contradict a file.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "config_testing.h"
#include "parsers/config_source.h"
#include "tests/support/temp_folder.h"

namespace trireme {
namespace {

using testing::Contains;
using testing::ErrorKeys;
using testing::Errors;
using testing::Has;
using testing::Parse;
using testing::ParseKeys;
using Keys = std::vector<std::string>;

// Two machines of 8 GPUs at tp 4 x pp 2: 2 replicas.
TEST(Contradictions, BatchOf4096OverTwoReplicasIsExplained) {
  const ParseResult r = Parse(R"({
  "train_batch_size": 4096,
  "train_micro_batch_size_per_gpu": 16,
  "gradient_accumulation_steps": 4,
  "tensor_parallel": {"tp_size": 4},
  "pipeline_parallel": {"pp_size": 2}
})",
                              16);
  ASSERT_EQ(Keys{"CFG020 train_batch_size"}, ErrorKeys(r)) << r.diagnostics.Render();
  EXPECT_EQ("4096 (line 2) != 16 (micro, line 3) x 4 (accumulation, line 4) x 2 (dp = world 16 / tp 4 / pp 2) = 128",
            Errors(r)[0].what);
  EXPECT_EQ(
      "set gradient_accumulation_steps to 128, or train_micro_batch_size_per_gpu to 512, or train_batch_size to 128, "
      "or "
      "run 512 ranks",
      Errors(r)[0].fix);
}

TEST(Contradictions, SizesOfTheFileSayWhatTheBatchCounts) {
  const ParseResult autotp = Parse(
      R"({"train_micro_batch_size_per_gpu":2,"gradient_accumulation_steps":4,"tensor_parallel":{"autotp_size":4}})", 8);
  EXPECT_EQ(Keys{}, ErrorKeys(autotp)) << autotp.diagnostics.Render();
  EXPECT_EQ(16, autotp.config.batch.train_batch_size);
  EXPECT_TRUE(Has(autotp, Severity::kNotice, "CFG025", "tensor_parallel.autotp_size"));
  EXPECT_TRUE(Contains(autotp.diagnostics.Render(),
                       "8 ranks / (tp 4 x pp 1) = 2 replicas, which the batch counts; "
                       "DeepSpeed counts every rank"));
  const ParseResult both = Parse(
      R"({"train_micro_batch_size_per_gpu":1,"tensor_parallel":{"tp_size":2},"pipeline_parallel":{"pp_size":2}})", 4);
  EXPECT_TRUE(Has(both, Severity::kNotice, "CFG025", "tensor_parallel.tp_size"));
  EXPECT_TRUE(Has(both, Severity::kNotice, "CFG025", "pipeline_parallel.pp_size"));
  TrainFlags f = testing::WithLr();
  f.tensor_model_parallel_size = 2;
  EXPECT_FALSE(Contains(Parse(R"({"train_batch_size":4})", 4, f).diagnostics.Render(), "CFG025"));
}

TEST(Contradictions, AutotpThatDisagreesWithTheGrid) {
  const std::string autotp = R"("tensor_parallel":{"autotp_size":4}})";
  const ParseResult all = Parse(
      R"({"train_batch_size":64,"train_micro_batch_size_per_gpu":2,"gradient_accumulation_steps":4,)" + autotp, 8);
  ASSERT_EQ(Keys{"CFG026 train_batch_size"}, ErrorKeys(all)) << all.diagnostics.Render();
  EXPECT_EQ(
      "64 is 2 (micro) x 4 (accumulation) x 8 for DeepSpeed, which counts all ranks of autotp_size 4 as replicas; "
      "an update then averages 16 different samples, for dp is 2 (dp = world 8 / tp 4 / pp 1)",
      Errors(all)[0].what);
  EXPECT_EQ(
      "set gradient_accumulation_steps to 16 for 64 different samples an update, or train_batch_size to 16 for "
      "what DeepSpeed averages",
      Errors(all)[0].fix);
  const std::string two = R"({"train_batch_size":64,"train_micro_batch_size_per_gpu":2,)";
  EXPECT_EQ(Keys{"CFG026 train_batch_size"}, ErrorKeys(Parse(two + autotp, 8)));
  EXPECT_EQ(Keys{}, ErrorKeys(Parse(two + R"("gradient_accumulation_steps":16,)" + autotp, 8)));
  EXPECT_EQ(Keys{}, ErrorKeys(Parse(two + R"("tensor_parallel":{"tp_size":4}})", 8)));
  TrainFlags f = testing::WithLr();
  f.tensor_model_parallel_size = 2;
  EXPECT_EQ(Keys{"CFG008 tensor_parallel.autotp_size"}, ErrorKeys(Parse(R"({"train_batch_size":64,)" + autotp, 8, f)));
}

TEST(Contradictions, PrescaleAtHighStages) {
  const auto errors = [](int stage, const std::string& keys) {
    return ErrorKeys(ParseKeys("\"zero_optimization\":{\"stage\":" + std::to_string(stage) + "}," + keys));
  };
  EXPECT_EQ(Keys{}, errors(1, R"("prescale_gradients":true,"gradient_predivide_factor":2.0)"));
  EXPECT_EQ((Keys{"CFG038 prescale_gradients", "CFG038 gradient_predivide_factor"}),
            errors(2, R"("prescale_gradients":true,"gradient_predivide_factor":2.0)"));
  EXPECT_EQ(Keys{}, errors(3, R"("prescale_gradients":false,"gradient_predivide_factor":1.0)"));
  EXPECT_EQ(
      Keys{},
      ErrorKeys(ParseKeys(R"("zero_optimization":{"stage":2,"reduce_scatter":false},"prescale_gradients":true)")));
}

TEST(Contradictions, CFG_16_SwitchesOfTheCommandLineAgainstAWrittenFalse) {
  TrainFlags f = testing::WithLr();
  f.distribute_saved_activations = true;
  f.sequence_parallel = true;
  EXPECT_EQ(
      (Keys{"CFG008 activation_checkpointing.partition_activations", "CFG008 trireme.sequence_parallel"}),
      ErrorKeys(ParseKeys(
          R"("activation_checkpointing":{"partition_activations":false},"trireme":{"sequence_parallel":false})", f)));
  const ParseResult flags = ParseKeys(R"("activation_checkpointing":{})", f);
  EXPECT_EQ(Keys{}, ErrorKeys(flags));
  EXPECT_TRUE(flags.config.recompute.partition_activations);
  EXPECT_TRUE(flags.config.tensor_parallel.sequence_parallel);
}

TEST(Neox, TopLevelIsGroupedByWhatToDo) {
  const ParseResult r = ParseKeys(R"("num-layers":12,"hidden_size":768,"weight-decay":0.1,"train-iters":10,
    "rope_fusion":false,"pipe-parallel-size":1)");
  EXPECT_EQ(Keys{}, ErrorKeys(r)) << r.diagnostics.Render();
  EXPECT_TRUE(Has(r, Severity::kWarning, "CFG059", "num-layers"));
  EXPECT_TRUE(Has(r, Severity::kWarning, "CFG059", "weight-decay"));
  EXPECT_TRUE(Has(r, Severity::kNotice, "CFG059", "train-iters"));
  EXPECT_TRUE(Has(r, Severity::kNotice, "CFG059", "rope_fusion"));
  EXPECT_EQ(2, r.diagnostics.num_warnings());
}

TEST(Base64, ConfigOnTheCommandLine) {
  // {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "_": "~~>>"}
  const std::string encoded =
      "eyJ0cmFpbl9iYXRjaF9zaXplIjogOCwgIm9wdGltaXplciI6IHsidHlwZSI6ICJTR0QiLCAicGFyYW1zIjogeyJsciI6IDAuMX19LCAiXyI6ICJ-"
      "fj4-In0=";
  const ParseResult r = ParseConfigFile(encoded, {}, 4);
  ASSERT_EQ(Keys{}, ErrorKeys(r)) << r.diagnostics.Render();
  EXPECT_EQ(2, r.config.batch.train_micro_batch_size_per_gpu);
  EXPECT_EQ("<base64>:1", testing::SourceOf(r, "train_batch_size"));
  // {"train_batch_size": 8, "train_batch_size": 8}
  EXPECT_EQ(Keys{"CFG003 train_batch_size"},
            ErrorKeys(ParseConfigFile(
                "eyJ0cmFpbl9iYXRjaF9zaXplIjogOCwgInRyYWluX2JhdGNoX3NpemUiOiA4fQ==", testing::WithLr(), 1)));
  EXPECT_EQ(Keys{"CFG001 "}, ErrorKeys(ParseConfigFile("dsconfig", {}, 1)));  // decodes, but to no object
  const ParseResult broken = ParseConfigFile(encoded + encoded + encoded + "!", {}, 4);
  ASSERT_EQ(Keys{"CFG001 "}, ErrorKeys(broken));
  EXPECT_TRUE(Contains(Errors(broken)[0].what, "neither a file nor"));
}

TEST(Base64, AFileOfThatNameComesFirst) {
  const std::string name = "eyJhIjogMX0=";  // {"a": 1}
  const std::filesystem::path old = std::filesystem::current_path();
  const std::filesystem::path folder = testing::NewTempFolder("base64");
  std::filesystem::current_path(folder);
  std::ofstream(name) << R"({"train_batch_size": 6})";
  const ParseResult r = ParseConfigFile(name, testing::WithLr(), 1);
  std::filesystem::current_path(old);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(Keys{}, ErrorKeys(r)) << r.diagnostics.Render();
  EXPECT_EQ(6, r.config.batch.train_batch_size);
}

TEST(Base64, DecodesTheUrlSafeAlphabet) {
  EXPECT_EQ("a", FromBase64("YQ=="));
  EXPECT_EQ("ab", FromBase64("YWI="));
  EXPECT_EQ("abc", FromBase64("YWJj"));
  EXPECT_EQ("\xfb\xff", FromBase64("-_8="));
  EXPECT_FALSE(FromBase64("YQ"));    // no padding
  EXPECT_FALSE(FromBase64("+/8="));  // the other alphabet
  EXPECT_FALSE(FromBase64(""));
}

}  // namespace
}  // namespace trireme
