// Out to Hugging Face: --save-hf at the end of a run, and convert from its checkpoint.
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/base/file.h"
#include "tests/cli/train/train_command.h"

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;

std::string Text(const std::string& path) { return ReadFile(path, ErrorCode::kData); }

TEST(SaveHuggingFace, RunAndCheckpointGiveTheSameFolder) {
  const TinyJob job;
  const Outcome run =
      RunTrireme(job.Train(2, {"--train-iters", "3", "--save", job.Path("ckpt"), "--save-hf", job.Path("out/model")}));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(Text(job.Path("out/model/config.json")).find("\"model_type\": \"gpt2\""), std::string::npos);
  const Outcome converted = RunTrireme({"convert", "--load", job.Path("ckpt"), "--save-hf", job.Path("converted")});
  ASSERT_EQ(converted.code, 0) << converted.err;
  for (const char* file : {"/config.json", "/model.safetensors"}) {
    EXPECT_EQ(Text(job.Path("out/model") + file), Text(job.Path("converted") + file)) << file;
  }
  const Outcome halves = RunTrireme(
      {"convert", "--load", job.Path("out/model"), "--save-hf", job.Path("halves"), "--save-hf-dtype", "bf16"});
  ASSERT_EQ(halves.code, 0) << halves.err;
  EXPECT_LT(fs::file_size(job.Path("halves/model.safetensors")),
            fs::file_size(job.Path("converted/model.safetensors")));
  EXPECT_NE(Text(job.Path("halves/config.json")).find("\"dtype\": \"bfloat16\""), std::string::npos);
}

TEST(SaveHuggingFace, NothingIsOverwrittenAndTheRunEndsBeforeItBegins) {
  const TinyJob job;
  fs::create_directories(job.Path("model"));
  job.WriteConfig("model/config.json", "{}");
  const Outcome run = RunTrireme(job.Train(1, {"--train-iters", "3", "--save-hf", job.Path("model")}));
  EXPECT_EQ(run.code, 65) << run.err;
  EXPECT_NE(run.err.find("CKP024"), std::string::npos) << run.err;
  EXPECT_EQ(run.out.find("step 3/3"), std::string::npos);
  EXPECT_EQ(Text(job.Path("model/config.json")), "{}");
  const Outcome convert = RunTrireme({"convert", "--load", job.Path("none"), "--save-hf", job.Path("model")});
  EXPECT_EQ(convert.code, 65);
  EXPECT_NE(convert.err.find("CKP024"), std::string::npos) << convert.err;
  EXPECT_EQ(RunTrireme({"convert", "--load", job.Path("none")}).code, 2);
  EXPECT_EQ(
      RunTrireme(job.Train(1, {"--train-iters", "3", "--save-hf", job.Path("n"), "--save-hf-dtype", "int8"})).code, 2);
}

}  // namespace
}  // namespace trireme::testing
