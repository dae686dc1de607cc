// `trireme explain`: what it prints, and how it answers to names that mean no key or several.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/cli/commands.h"
#include "tests/support/temp_folder.h"

namespace trireme {
namespace {

std::string Output(const std::vector<std::string>& words) {
  ::testing::internal::CaptureStdout();
  try {
    EXPECT_EQ(0, cli::RunExplain(words));
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  return ::testing::internal::GetCapturedStdout();
}

void ExpectContains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in\n" << text;
}

// The error of a command line that ends with exit code 2.
Error Refusal(const std::vector<std::string>& words) {
  try {
    Output(words);
  } catch (const Error& error) {
    EXPECT_EQ(2, ExitCode(error.code())) << error.what();
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(ErrorCode::kInternal, "none", "", "", "");
}

class ExplainFile : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = testing::NewTempFolder("explain"); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& text) const {
    const std::string path = folder_ / "ds.json";
    std::ofstream(path) << text;
    return path;
  }
  std::filesystem::path folder_;
};

TEST(Explain, SaysMeaningClassDefaultAndEffects) {
  const std::string text = Output({"zero_optimization.stage"});
  for (const char* part : {"zero_optimization.stage\n", "over the data-parallel ranks", "act: does what it says",
                           "default    0", "memory ", "speed ", "result ", "\"auto\"     the default", "DeepSpeed  "}) {
    ExpectContains(text, part);
  }
}

TEST(Explain, TheEndOfAPathIsEnoughWhereItIsTheOnlyOne) {
  EXPECT_EQ(Output({"zero_optimization.stage"}), Output({"stage"}));
  EXPECT_EQ(Output({"zero_optimization.stage"}), Output({"STAGE"}));
  EXPECT_EQ(Output({"micro-batch-size"}), Output({"--micro-batch-size"}));
  ExpectContains(Output({"betas"}), "--adam-beta1, --adam-beta2");
  EXPECT_EQ(Output({"gradient_clipping"}), Output({"clip-grad"}));  // a flag
}

TEST(Explain, AnotherNameLeadsToTheKey) {
  const std::string text = Output({"tensor_parallel.autotp_size"});
  ExpectContains(text, "tensor_parallel.autotp_size: DeepSpeed's name of tensor_parallel.tp_size");
  ExpectContains(text, "tensor_parallel.tp_size\n  Number of ranks");
}

TEST(Explain, AWrongNameGetsTheNearestAndExitCode2) {
  const Error stage = Refusal({"stge"});
  EXPECT_EQ("CLI010", stage.id());
  ExpectContains(stage.what(), "did you mean zero_optimization.stage?");
  ExpectContains(Refusal({"zero_optimisation.reduce_bucket_siz"}).what(), "zero_optimization.reduce_bucket_size");
  ExpectContains(Refusal({"bucket"}).what(), "zero_optimization.allgather_bucket_size");
  ExpectContains(Refusal({"nothing_like_this"}).what(), "--all");
}

TEST(Explain, ANameOfSeveralKeysListsThem) {
  const Error error = Refusal({"enabled"});
  EXPECT_EQ("CLI011", error.id());
  ExpectContains(error.what(), "bf16.enabled");
  ExpectContains(error.what(), "more");
}

TEST(Explain, ASectionIsAListOfItsKeys) {
  const std::string all = Output({});
  ExpectContains(all, "zero_optimization");
  ExpectContains(all, "section: Keys of this program");
  const std::string aio = Output({"aio"});
  ExpectContains(aio, "aio.block_size");
  EXPECT_EQ(aio.find("fp16."), std::string::npos);
  ExpectContains(Output({"--all"}), "zero_optimization.offload_param.pin_memory");
}

TEST(Explain, AFlagWithoutAKeyHasItsLineOfHelp) {
  const std::string text = Output({"seq_length"});
  ExpectContains(text, "a flag of `trireme train`\n  --seq-length N");
  ExpectContains(Output({"num-gpus"}), "a flag of `trireme plan`\n  --num_gpus N");
}

TEST(Explain, AnErrorIsExplainedByItsId) {
  const std::string text = Output({"cfg003"});
  ExpectContains(text, "CFG003\n");
  ExpectContains(text, "**Cause**: one object has the same key twice");
  ExpectContains(text, "**Fix**");
  EXPECT_EQ(text.find("CFG004"), std::string::npos);
  EXPECT_EQ("CLI010", Refusal({"XYZ999"}).id());
}

TEST_F(ExplainFile, SaysWhatHoldsInAFileAndWhy) {
  const std::string file = Write("{\"train_batch_size\": 8,\n \"zero_optimization\": {\"stage\": 2}}");
  ExpectContains(Output({"stage", "--deepspeed_config", file}), "here       2 (" + file + ":2)");
  const std::string clipping = Output({"gradient_clipping", "--deepspeed_config", file});
  ExpectContains(clipping, "changed    0 (no clipping) in DeepSpeed before 0.19.3");
  ExpectContains(clipping, "here       1 (default)\n");
  ExpectContains(Output({"train_micro_batch_size_per_gpu", "--deepspeed_config", file, "--num_gpus", "4"}),
                 "here       2 (derived: batch = micro x accumulation x dp)");
  ExpectContains(Output({"sparse_gradients", "--deepspeed_config", file}), "here       absent");
}

// DOC-01: what is this key for this model, and why.
TEST_F(ExplainFile, DOC_01_AnAutomaticValueIsShownWithItsRule) {
  const std::string file = Write(R"({"train_batch_size": 8,
    "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto"}})");
  const std::string text =
      Output({"stage3_prefetch_bucket_size", "--deepspeed_config", file, "--model_name", "gpt-125m"});
  ExpectContains(text, "here       530841 (\"auto\": 0.9 x hidden_size^2, rounded down)");  // hidden size 768
  for (const char* part : {"default    50000000", "memory ", "speed ", "at stage 3"}) ExpectContains(text, part);
}

TEST_F(ExplainFile, AnotherNameInTheFileIsFound) {
  const std::string file = Write(R"({"train_batch_size": 8, "zero_optimization": {"prefetch_bucket_size": 7}})");
  ExpectContains(Output({"stage3_prefetch_bucket_size", "--deepspeed_config", file}), "here       7 (" + file);
}

TEST_F(ExplainFile, ProblemsOfTheKeyAreShownOthersCounted) {
  const std::string file =
      Write(R"({"train_batch_size": "eight", "zero_optimization": {"stage": 5}, "fp16": {"loss_scale": -1}})");
  ::testing::internal::CaptureStderr();
  const std::string value = Output({"stage", "--deepspeed_config", file});
  const std::string text = ::testing::internal::GetCapturedStderr();
  ExpectContains(value, "here ");
  EXPECT_EQ(value.find("CFG006"), std::string::npos) << value;
  ExpectContains(text, "CFG006");
  ExpectContains(text, "2 other errors in " + file);
  EXPECT_THROW(Output({"stage", "--deepspeed_config", (folder_ / "none.json").string()}), Error);
}

}  // namespace
}  // namespace trireme
