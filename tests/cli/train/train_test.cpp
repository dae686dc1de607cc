// The main job as a user runs it: text, config, two commands.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/data/indexed_writer.h"
#include "tests/cli/train/train_command.h"

namespace trireme::testing {
namespace {

std::vector<nlohmann::json> ReadLog(const std::string& path) {
  std::vector<nlohmann::json> steps;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) steps.push_back(nlohmann::json::parse(line));
  return steps;
}

TEST(Train, LossFallsCheckpointResumesInAnotherLayoutAndTextComesOut) {
  const TinyJob job;
  const Outcome first =
      RunTrireme(job.Train(2, {"--train-iters", "12", "--save", job.Path("ckpt"), "--eval-interval", "6", "--log-json",
                               job.Path("a.jsonl"), "--trace", job.Path("trace.json")}));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out.find("step 12/12 | loss "), std::string::npos) << first.out;
  for (const char* part :
       {"lr ", "grad norm ", "tokens/s", "TFLOP/s", "memory ", "ETA ", "validation at step 12 | loss "}) {
    EXPECT_NE(first.out.find(part), std::string::npos) << part;
  }
  // What the config resolves to, and who said so.
  for (const char* part : {"zero_optimization.stage", "derived: batch = micro x accumulation x dp"})
    EXPECT_NE((first.out + first.err).find(part), std::string::npos) << part;
  const auto log = ReadLog(job.Path("a.jsonl"));
  ASSERT_EQ(log.size(), 12u);
  for (size_t step = 0; step < log.size(); ++step) {
    EXPECT_EQ(log[step]["step"], step);
    EXPECT_EQ(log[step]["tokens"], 8 * 32);
    EXPECT_EQ(log[step]["skipped"], 0);
    for (const char* key : {"loss", "lr", "grad_norm", "clip", "skipped_in_a_row", "loss_scale", "seconds"})
      EXPECT_TRUE(log[step][key].is_number()) << key;
  }
  EXPECT_LT(log[11]["loss"].get<double>(), log[0]["loss"].get<double>() - 0.5);
  const nlohmann::json trace = nlohmann::json::parse(std::ifstream(job.Path("trace.json")));
  EXPECT_GT(trace["traceEvents"].size(), 30u);
  EXPECT_TRUE(std::filesystem::exists(job.Path("trace.json.rank1")));

  std::string other = kTinyConfig;
  other.replace(other.find("\"stage\": 2"), 10, "\"stage\": 3");
  job.WriteConfig("zero3.json", other);
  const Outcome second = RunTrireme(job.Train(
      4, {"--train-iters", "14", "--load", job.Path("ckpt"), "--log-json", job.Path("b.jsonl")}, "zero3.json"));
  ASSERT_EQ(second.code, 0) << second.err;
  const auto resumed = ReadLog(job.Path("b.jsonl"));
  ASSERT_EQ(resumed.size(), 2u);
  EXPECT_EQ(resumed[0]["step"], 12);
  EXPECT_NEAR(resumed[0]["loss"].get<double>(), log[11]["loss"].get<double>(), 0.3);

  const std::vector<std::string> generate = {"generate",         "--load", job.Path("ckpt"), "--prompt", "And the ",
                                             "--max-new-tokens", "20"};
  const Outcome text = RunTrireme(generate);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(text.out.starts_with("And the "));
  EXPECT_GE(text.out.size(), 28u);
  EXPECT_EQ(RunTrireme(generate).out, text.out);  // the same seed
}

TEST(Train, DAT_05_FinishedRunSaysThatNothingIsLeft) {
  const TinyJob job;
  ASSERT_EQ(RunTrireme(job.Train(1, {"--train-iters", "2", "--save", job.Path("ckpt")})).code, 0);
  const Outcome again = RunTrireme(job.Train(1, {"--train-iters", "2", "--load", job.Path("ckpt")}));
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.err.find("nothing to train: 2 steps are done"), std::string::npos) << again.err;
}

// A run that goes on with another batch on other ranks takes the next sample, not the next step.
TEST(Train, DAT_09_PositionIsKeptInSamples) {
  const TinyJob job;
  ASSERT_EQ(RunTrireme(job.Train(1, {"--train-iters", "10", "--save", job.Path("ckpt")})).code, 0);
  std::string half = kTinyConfig;
  half.replace(half.find("\"train_batch_size\": 8"), 21, "\"train_batch_size\": 4");
  job.WriteConfig("half.json", half);
  const Outcome second = RunTrireme(job.Train(2, {"--train-iters", "12", "--load", job.Path("ckpt")}, "half.json"));
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_NE(second.err.find("at step 10, next sample 80"), std::string::npos) << second.err;
}

// Real processes over Gloo. fp32 ends; bf16 says it in the skipped step's line and goes on.
TEST(Train, NUM_08_TheFirstBadValueIsNamedWithUnitRankMicroBatchAndStep) {
  const TinyJob job;
  const std::vector<std::string> flags = {"--train-iters",        "9",          "--inject-value",
                                          "7:1:2:1:backward:nan", "--log-json", job.Path("log.jsonl")};
  const std::string found =
      "first bad value: NaN in the gradient of the input of transformer.h.1 (element 0), backward of micro-batch 1 on "
      "rank 1 (pp 0, dp 1, tp 0)";
  const Outcome wide = RunTrireme(job.Train(2, flags));
  EXPECT_EQ(wide.code, 1);
  EXPECT_NE(wide.err.find("TRN005"), std::string::npos) << wide.err;
  EXPECT_NE(wide.err.find("step 7"), std::string::npos) << wide.err;
  EXPECT_NE(wide.err.find(found), std::string::npos) << wide.err;

  std::string bf16 = kTinyConfig;
  bf16.replace(bf16.find("\"gradient_clipping\""), 0, "\"bf16\": {\"enabled\": true}, ");
  job.WriteConfig("bf16.json", bf16);
  const Outcome narrow = RunTrireme(job.Train(2, flags, "bf16.json"));
  EXPECT_EQ(narrow.code, 0) << narrow.err;
  const size_t line = narrow.err.find("step 7: skipped, loss ");
  ASSERT_NE(line, std::string::npos) << narrow.err;
  EXPECT_LT(narrow.err.find(found, line), narrow.err.find('\n', line)) << narrow.err;
  EXPECT_EQ(narrow.err.find("first bad value", line), narrow.err.rfind("first bad value")) << "said once";
  const auto log = ReadLog(job.Path("log.jsonl"));
  ASSERT_EQ(log.size(), 9u);
  EXPECT_EQ(log[7]["skipped"], 1);
  EXPECT_EQ(log[7]["lr"], log[8]["lr"]) << "a skipped step does not advance the rate";
}

// Documents of 2 to 60 tokens in micro-batches of at most 96, on two ranks, then on one.
TEST(Train, DynamicBatchingTrainsDocumentsOfDifferentLengths) {
  const TinyJob job;
  {
    data::IndexedWriter writer(job.Path("documents"), data::TokenTypeForVocab(257));
    for (int document = 0; document < 200; ++document) {
      std::vector<int32_t> ids;
      for (int i = 0; i <= document * document % 60; ++i) ids.push_back((document + 3 * i) % 50);
      ids.push_back(256);
      writer.AddSequence(ids);
      writer.EndDocument();
    }
    writer.Finish();
  }
  std::string config = kTinyConfig;
  config.replace(config.find("\"train_micro_batch_size_per_gpu\": 2"), 35, R"("train_micro_batch_size_per_gpu": 1,
  "data_efficiency": {"data_sampling": {"dynamic_batching": {"enabled": true, "max_tokens": 96,
    "sequence_picking_order": "random", "lr_scaling_method": "sqrt"}}})");
  job.WriteConfig("dynamic.json", config);
  const auto train = [&](int ranks, std::vector<std::string> more) {
    more.insert(more.begin(), {"--vocab-size", "257"});
    std::vector<std::string> words = job.Train(ranks, more, "dynamic.json");
    std::ranges::replace(words, job.Path("text"), job.Path("documents"));
    return RunTrireme(words);
  };
  const Outcome first = train(
      2, {"--train-iters", "8", "--save", job.Path("ckpt"), "--eval-interval", "4", "--log-json", job.Path("a.jsonl")});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.err.find("dynamic batching: "), std::string::npos) << first.err;
  EXPECT_NE(first.out.find("validation at step 8 | loss "), std::string::npos) << first.out;
  const auto log = ReadLog(job.Path("a.jsonl"));
  ASSERT_EQ(log.size(), 8u);
  for (const nlohmann::json& step : log) EXPECT_LE(step["tokens"].get<double>(), 8 * 96);
  EXPECT_NE(log[4]["tokens"], log[5]["tokens"]);
  EXPECT_NE(log[6]["lr"], log[7]["lr"]);  // past the warm-up: the batch decides
  EXPECT_LT(log[7]["loss"].get<double>(), log[0]["loss"].get<double>());
  const Outcome second = train(1, {"--train-iters", "10", "--load", job.Path("ckpt")});
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.err.find("resumed data order"), std::string::npos) << second.err;
}

TEST(Train, FollowsDeepSpeedOverRealProcesses) {
  const std::string fixtures = TRIREME_FIXTURES;
  for (const std::string name : {"adamw_decay_clip_zero1", "adam_l2_cosine_zero2", "adamw_onecycle_zero3"}) {
    const nlohmann::json expected =
        nlohmann::json::parse(std::ifstream(fixtures + "/traces/" + name + "/expected.json"));
    const TempFolder folder;
    const std::string log = folder.path() / "log.jsonl";
    const Outcome run =
        RunTrireme({"launch", "--cpu", "--num_gpus", "2", "train", "--deepspeed_config",
                    fixtures + "/traces/" + name + "/config.json", "--init-from",
                    fixtures + "/" + expected["initial"].get<std::string>(), "--data-path",
                    fixtures + "/" + expected["tokens"].get<std::string>(), "--no-shuffle", "--seq-length", "32",
                    "--train-iters", std::to_string(expected["steps"].size()), "--log-json", log});
    ASSERT_EQ(run.code, 0) << run.err;
    const auto steps = ReadLog(log);
    ASSERT_EQ(steps.size(), expected["steps"].size());
    for (size_t step = 0; step < steps.size(); ++step) {
      const nlohmann::json& want = expected["steps"][step];
      EXPECT_NEAR(steps[step]["loss"].get<double>() / want["loss"].get<double>(), 1, 2e-6) << name << " step " << step;
      EXPECT_NEAR(steps[step]["grad_norm"].get<double>() / want["grad_norm"].get<double>(), 1, 5e-6)
          << name << " step " << step;
      EXPECT_EQ(steps[step]["lr"].get<double>(), want["lr"].get<double>()) << name << " step " << step;
    }
  }
}

TEST(Train, ExampleTrainsThroughTheLibrary) {
  const TinyJob job;
  std::string config = kTinyConfig;
  const Outcome run = [&] {
    Command command("/bin/sh",
                    {"-c", "cd " + job.folder().string() + " && " + kTrireme + " launch --cpu --num_gpus 2 " +
                               TRIREME_BIN_DIR + "/01_train_gpt config.json text 8"});
    return command.Wait();
  }();
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("step 0 loss 5."), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("last micro-batch loss "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("saved checkpoint_01/global_step8 after 8 steps"), std::string::npos) << run.out;
}

TEST(Train, ExampleTrainsModulesOfItsOwn) {
  const TinyJob job;
  const std::string config = std::string(TRIREME_SOURCE_DIR) + "/examples/02_own_module/ds_config.json";
  Command command("/bin/sh", {"-c", "cd " + job.folder().string() + " && " + kTrireme + " launch --cpu --num_gpus 2 " +
                                        TRIREME_BIN_DIR + "/02_own_module " + config + " text 11"});
  const Outcome run = command.Wait();
  ASSERT_EQ(run.code, 0) << run.err;
  const auto loss_after = [&](const std::string& label) {
    const size_t at = run.out.find(label);
    return at == std::string::npos ? NAN : std::stod(run.out.substr(at + label.size()));
  };
  EXPECT_NEAR(loss_after("step 0 loss "), 5.6, 0.4) << run.out;  // ln 257
  EXPECT_LT(loss_after("step 10 loss "), loss_after("step 0 loss ") - 1) << run.out;
  EXPECT_NE(run.out.find("saved checkpoint_02/global_step11"), std::string::npos) << run.out;
}

}  // namespace
}  // namespace trireme::testing
