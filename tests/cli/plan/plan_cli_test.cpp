// `trireme plan`: what it prints, its exit codes, and its time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/cli/commands.h"
#include "parsers/json_tree.h"
#include "tests/cli/plan/plan_command.h"

namespace trireme {
namespace {

using testing::At;
using testing::ExpectContains;
using testing::PlanCommand;

TEST_F(PlanCommand, ShowsArithmeticLayoutMemoryAndTraffic) {
  const std::string text =
      Run({Write(kStage3), "--model_name", "gpt-13b", "--num_nodes", "125", "--num_gpus", "8", "--seq-length", "2048"});
  EXPECT_EQ(code_, 0);
  ExpectContains(text, "12,853,386,240");
  ExpectContains(text, "train_batch_size 64000 = 1 (micro) x 64 (accumulation) x 1000 (dp)");
  ExpectContains(text, "1000 = 125 nodes x 8");
  ExpectContains(text, "40 x block of 314,688,000");
  ExpectContains(text, "41 of");
  ExpectContains(text, "1/1000 (dp) of the model");
  ExpectContains(text, "79.56 GFLOP a token");
  for (const char* row :
       {"weights", "gradients", "master weights", "moments", "arena", "workspace", "attention", "total", "traffic"}) {
    ExpectContains(text, row);
  }
}

// All mistakes of a file in one run, each with line, key and cure.
TEST_F(PlanCommand, SevenMistakesAreSevenFindings) {
  const std::string path = Write(R"({
  "train_batch_size": 7,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_cliping": 1.0,
  "bf16": {"enabled": "maybe"},
  "optimizer": {"type": "Adamw2", "params": {}},
  "tensorboard": {"output_path": 3},
  "zero_optimization": {"stage": 5, "reduce_bucket_size": 1.5}
})");
  try {
    Run({path, "--model_name", "gpt-125m", "--num_gpus", "2"});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(ExitCode(error.code()), 78);
    const std::string text = error.what();
    for (const char* finding : {":2:3: train_batch_size", ":4:3: gradient_cliping", ":5:12: bf16.enabled",
                                ":6:17: optimizer.type", ":7:19: tensorboard.output_path",
                                ":8:25: zero_optimization.stage", ":8:37: zero_optimization.reduce_bucket_size"}) {
      ExpectContains(text, path + finding);
    }
    size_t cures = 0;
    for (size_t at = text.find("fix: "); at != std::string::npos; at = text.find("fix: ", at + 1)) ++cures;
    EXPECT_EQ(cures, 7u) << text;
  }
}

// MEM-06: what shards and what does not is said for each part.
TEST_F(PlanCommand, MEM_06_ReplicatedPartsAreMarked) {
  const std::string text = Run({Write(R"({"train_batch_size": 4, "zero_optimization": {"stage": 1}})"), "--model_name",
                                "gpt-125m", "--num_gpus", "4"});
  ExpectContains(text, "the whole of the model");
  ExpectContains(text, "1/4 (dp) of the model");
}

TEST_F(PlanCommand, OneRankHasNothingToShard) {
  ExpectContains(
      Run({Write(R"({"train_batch_size": 4, "zero_optimization": {"stage": 2}})"), "--model_name", "gpt-125m"}),
      "nothing to shard");
}

TEST_F(PlanCommand, SaysWhetherItFits) {
  const std::string config =
      Write(R"({"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}})");
  const std::vector<std::string> words = {config, "--model_name", "gpt-13b", "--num_gpus", "8"};
  std::vector<std::string> small = words, large = words;
  small.insert(small.end(), {"--gpu-memory-gib", "40"});
  large.insert(large.end(), {"--gpu-memory-gib", "192"});
  const std::string no = Run(small);
  EXPECT_EQ(code_, 1);
  ExpectContains(no, "does not fit");
  ExpectContains(no, "would fit: zero_optimization.stage 1 -> ");
  ExpectContains(no,
                 "check: trireme plan " + config + " --model_name gpt-13b --num_gpus 8 --gpu-memory-gib 40 --with ");
  const std::string yes = Run(large);
  EXPECT_EQ(code_, 0);
  ExpectContains(yes, "fits");
}

// The command that a change comes with says that it fits; so does the one for the suggested file, which keeps what is
// no layout.
TEST_F(PlanCommand, WhatIsProposedFitsWhenItIsAskedFor) {
  const std::string config = Write(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, # large
      "optimizer": {"type": "Lion", "params": {"lr": 3e-5}}, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}})");
  const std::vector<std::string> words = {config,          "--model_name", "gpt-13b", "--cluster",
                                          "a100-pcie-hdr", "--num_nodes",  "1"};
  const std::string no = Run(words);
  EXPECT_EQ(code_, 1);
  const auto after = [](const std::string& text, const std::string& mark) {
    const size_t begin = text.find(mark) + mark.size();
    std::vector<std::string> found;
    std::istringstream line(text.substr(begin, text.find('\n', begin) - begin));
    for (std::string word; line >> word;) found.push_back(word);
    return found;
  };
  ExpectContains(no, "x the step time");
  Run(after(no, "check: trireme plan "));
  EXPECT_EQ(code_, 0);

  const std::string best = folder_ / "best.json";
  std::vector<std::string> asks = words;
  asks.insert(asks.end(), {"--suggest", best});
  const std::string found = Run(asks);
  EXPECT_EQ(code_, 0);
  for (const char* reason : {"memory  ", "topology  ", "communication  ", "throughput  "})
    ExpectContains(found, reason);
  const std::vector<std::string> check = after(found, "written to " + best + "; check: trireme plan ");
  EXPECT_EQ(best, check.at(0));
  const std::string fits = Run(check);
  EXPECT_EQ(code_, 0);
  ExpectContains(fits, "verdict     fits: ");
  std::ifstream in(best);
  const std::string written(std::istreambuf_iterator<char>(in), {});
  ExpectContains(written, "\"train_batch_size\": 64");
  ExpectContains(written, "\"lr\": 3e-5");
  asks.push_back("--json");
  const std::string json = Run(asks);
  EXPECT_EQ(code_, 0);
  for (const char* part : {"\"would_fit\": [", "\"step_ratio\": ", "\"suggested\": {", "\"micro_batches\": "}) {
    ExpectContains(json, part);
  }
  EXPECT_THROW(Run({config, "--model_name", "gpt-13b", "--suggest", best}), Error) << "no cluster";
}

TEST_F(PlanCommand, MistakesAreErrorsOfTheirRoom) {
  EXPECT_THROW(Run({(folder_ / "missing.json").string(), "--model_name", "gpt-125m"}), Error);
  try {
    Run({Write(R"({"train_batch_size": 4})"), "--model_name", "gpt-125m", "--seq-length", "4096"});
    ADD_FAILURE() << "4096 tokens in 2048 positions";
  } catch (const Error& error) {
    EXPECT_EQ(error.id(), "PLN007");
  }
}

// The resolved table: who said what; defaults that DeepSpeed changed say which one holds. --resolved has all rows.
TEST_F(PlanCommand, ShowsResolvedValuesWithTheirOrigin) {
  const std::string config = Write(kStage3);
  const std::vector<std::string> words = {config, "--model_name", "gpt-125m", "--lr-warmup-iters", "5"};
  const std::string text = Run(words);
  ExpectContains(text, config + ":2");
  ExpectContains(text, "derived: batch = micro x accumulation x dp");
  ExpectContains(text, "gradient_clipping");
  ExpectContains(text, "1 since; the newer holds");
  EXPECT_EQ(text.find("zero_optimization.reduce_bucket_size"), std::string::npos) << text;
  std::vector<std::string> all = words;
  all.push_back("--resolved");
  ExpectContains(Run(all), "zero_optimization.reduce_bucket_size");
}

// Processor time of this process, so that other work on the machine does not count.
TEST_F(PlanCommand, ThousandRanksTakeABlink) {
  const std::vector<std::string> words = {Write(kStage3), "--model_name", "gpt-13b", "--num_nodes",
                                          "125",          "--num_gpus",   "8"};
  double best_ms = 1e9;
  for (int i = 0; i < 5; ++i) {
    const std::clock_t start = std::clock();
    Run(words);
    best_ms = std::min(best_ms, 1000.0 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers slow it down: " << best_ms << " ms";
#else
  EXPECT_LT(best_ms, 40);
#endif
}

TEST_F(PlanCommand, DynamicBatchingIsABudgetOfTokens) {
  const std::string text = Run({Write(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1,
      "data_efficiency": {"data_sampling": {"dynamic_batching": {"enabled": true, "max_tokens": 4096,
        "max_batch_size": 64}}}})"),
                                "--model_name", "gpt-125m", "--num_gpus", "2", "--seq-length", "1024"});
  ExpectContains(text, "up to 1,024 tokens a sequence, up to 4,096 a micro-batch, up to 32,768 a step");
  ExpectContains(text, "dynamic batching: micro-batches of 1 to 64 sequences, lengths in multiples of 8");
}

constexpr const char* kPipeline =
    R"({"train_batch_size": 64, "gradient_accumulation_steps": 8, "bf16": {"enabled": true}, "pipeline_parallel": {"pp_size": 4},
        "zero_optimization": {"stage": 1}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})";

// The reference study's fourth layout, as a user would ask for it.
TEST_F(PlanCommand, ACluster) {
  const std::string text =
      Run({Write(kPipeline), "--model_name", "gpt-13b", "--cluster", "reference-study", "--seq-length", "2048"});
  EXPECT_EQ(code_, 1) << "without recomputation the first stage's activations are too much";
  ExpectContains(text, "8 = 1 node x 8; grid pp 4 x dp 2 x tp 1");
  ExpectContains(text, "pp 3: 6 7");
  ExpectContains(text, "bubble of equal stages 27.3 %");
  ExpectContains(text, "a step takes 11.");
  ExpectContains(text, "bubble ");
  ExpectContains(text, "boundaries");
  ExpectContains(text, "does not fit: pipeline rank 0 takes");
  ExpectContains(text, "most of it are activations");
  ExpectContains(Run({Write(kStage3), "--model_name", "gpt-125m"}), "not predicted: name the machine with --cluster");
}

TEST_F(PlanCommand, RatesThatTheClusterLacksAreNamed) {
  const std::string config = Write(R"({"train_batch_size": 2})");
  const std::vector<std::string> words = {config, "--model_name", "gpt-125m", "--cluster", "h200-pair"};
  ExpectContains(Run(words), "the cluster h200-pair has no rates of fp32");
}

// What ranks on one device may take is their share of it.
TEST_F(PlanCommand, RanksThatShareADeviceShareItsMemory) {
  const std::string config = Write(R"({"train_batch_size": 8, "bf16": {"enabled": true}})");
  const std::vector<std::string> words = {config, "--model_name", "gpt-1.3b", "--cluster", "h200-pair"};
  std::vector<std::string> alone = words, shared = words;
  alone.insert(alone.end(), {"--num_gpus", "2"});
  shared.insert(shared.end(), {"--num_gpus", "8"});
  ExpectContains(Run(alone), "of a device's 140.35 GiB");
  EXPECT_EQ(code_, 0);
  const std::string text = Run(shared);
  ExpectContains(text, "4 ranks share each of a node's 2 GPUs");
  ExpectContains(text, "of its share, 35.09 GiB, of a device's 140.35 GiB");
}

// A description without a link to the host says nothing about what offloading takes.
TEST_F(PlanCommand, NoTimeWhereTheClusterLacksWhatOffloadingNeeds) {
  const std::string config = Write(R"({"train_batch_size": 8, "bf16": {"enabled": true},
      "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})");
  const std::string text = Run({config, "--model_name", "gpt-1.3b", "--cluster", "reference-study"});
  ExpectContains(text, "no time is predicted: what is offloaded needs host_link and host.memory");
  EXPECT_EQ(std::string::npos, text.find("a step takes"));
}

TEST_F(PlanCommand, RefusesWhatCannotBeMeant) {
  const std::string config = Write(R"({"train_batch_size": 8, "bf16": {"enabled": true}})");
  const std::vector<std::string> words = {config, "--model_name", "gpt-125m"};
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--gpu-memory-gib", "0"},
           {"--gpu-memory-gib", "-8"},
           {"--gpu-memory-gib", "1e30"},
           {"--cluster", ""},
           {"--num_nodes", "1000000000", "--num_gpus", "9000000000"},
           {"--micro-batch-size", "1000000000000"},
           {"--seq-length", "1000000000000"},
           {"--cluster", "h200-pair", "--suggest", folder_ / "." / "ds_config.json"},
       }) {
    std::vector<std::string> asks = words;
    asks.insert(asks.end(), more.begin(), more.end());
    EXPECT_THROW(Run(asks), Error) << more[1];
  }
}

// A shell reads a proposed command back to words that plan what fits, whatever stands in them.
TEST_F(PlanCommand, ProposedCommandsSurviveAShell) {
  const std::string config = folder_ / "it's $mine.json";
  std::ofstream(config) << R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8})";
  const std::string text =
      Run({"--deepscale_config", config, "--model_name", "gpt-13b", "--cluster", "a100-pcie-hdr", "--num_nodes", "1",
           "--with", "bf16={\"enabled\": true}", "zero_optimization.stage=1", "trireme.recompute=keep"});
  EXPECT_EQ(code_, 1);
  const std::string mark = "check: trireme plan ";
  const size_t begin = text.find(mark);
  ASSERT_NE(std::string::npos, begin) << text;
  const std::string command = text.substr(begin + mark.size(), text.find('\n', begin) - begin - mark.size());
  EXPECT_EQ(command.find("--with"), command.rfind("--with")) << command;
  std::ofstream(folder_ / "paste.sh") << "printf '%s\\n' " << command << "\n";
  const std::string words_file = folder_ / "words";
  ASSERT_EQ(0, std::system(("sh '" + (folder_ / "paste.sh").string() + "' > '" + words_file + "'").c_str()));
  std::ifstream in(words_file);
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word);) words.push_back(word);
  EXPECT_EQ(config, words.at(0));
  Run(words);
  EXPECT_EQ(code_, 0) << command;
}

TEST_F(PlanCommand, GridOfRanks) {
  const std::string config = Write(R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
      "tensor_parallel": {"tp_size": 2}, "pipeline_parallel": {"pp_size": 2}})");
  std::string text = Run({config, "--model_name", "gpt-125m", "--num_nodes", "2", "--num_gpus", "6"});
  ExpectContains(text, "pp 0: 0-1 2-3 4-5\n");
  ExpectContains(text, "pp 1: 6-7 8-9 10-11\n");
  text = Run({config, "--model_name", "gpt-125m", "--num_nodes", "4", "--num_gpus", "3"});
  ExpectContains(text, "pp 0: 0-1 2|3 4-5\n");
  text = Run({config, "--model_name", "gpt-125m", "--num_nodes", "100", "--num_gpus", "8"});
  ExpectContains(text, "pp 0: 0-1 2-3 4-5 6-7 | 8-9 10-11 12-13 ... 398-399\n");
  ExpectContains(text, "over tp 2, inside a node");
  ExpectContains(text, "reduced over dp 200, across 50 nodes");
}

// Every key that docs/plan.md promises is there, and the numbers are those of the text.
TEST_F(PlanCommand, JsonOfAnErrorHasEveryProblem) {
  const std::string path =
      Write(R"({"train_batch_size": 1, "gradient_cliping": 1, "zero_optimization": {"stage": 7}})");
  ::testing::internal::CaptureStdout();
  EXPECT_THROW(cli::RunPlan({path, "--model_name", "gpt-125m", "--json"}), Error);
  const std::string text = ::testing::internal::GetCapturedStdout();
  for (const char* part : {"\"exit_code\": 78", "\"key\": \"gradient_cliping\"", "\"key\": \"zero_optimization.stage\"",
                           "\"line\": 1", "\"severity\": \"error\""}) {
    ExpectContains(text, part);
  }
}

TEST_F(PlanCommand, JsonOfBytesThatAreNoText) {
  const std::string path = folder_ / "ds\xff.json";
  std::ofstream(path) << R"({"train_batch_size": 1, "zero_optimization": {"stage": 3, "offload_optimizer":
      {"device": "cpu", "nvme_path": ")"
                      << "\xfe"
                      << R"("}}})";
  const std::string text = Run({path, "--model_name", "gpt-125m", "--json"});
  Diagnostics diagnostics;
  EXPECT_TRUE(ReadJson(text, "out", diagnostics)) << diagnostics.Render();
  ExpectContains(text, "\xEF\xBF\xBD");  // U+FFFD
}

TEST_F(PlanCommand, Json) {
  const JsonValue json =
      RunJson({Write(kPipeline), "--model_name", "gpt-13b", "--cluster", "reference-study", "--seq-length", "2048"});
  EXPECT_EQ(code_, 1);
  const auto at = [&](std::initializer_list<const char*> path) -> const JsonValue& { return At(json, path); };
  EXPECT_EQ(1, at({"schema"}).integer);
  EXPECT_EQ("1", at({"config", "zero_optimization.stage", "value"}).text);
  EXPECT_EQ(4, at({"ranks", "pipeline"}).integer);
  EXPECT_EQ(131072, at({"batch", "tokens_per_step"}).integer);
  EXPECT_EQ(4U, at({"stages"}).elements.size());
  EXPECT_EQ(4U, at({"memory"}).elements.size());
  EXPECT_NEAR(131072 / at({"prediction", "step_seconds"}).number, at({"prediction", "tokens_per_second"}).number, 1);
  EXPECT_EQ("activations", at({"verdict", "largest_class"}).text);
  EXPECT_FALSE(at({"verdict", "fits"}).boolean);
  EXPECT_EQ(2, at({"traffic", "gradients", "ranks"}).integer);
  std::ifstream file(std::string(TRIREME_SOURCE_DIR) + "/docs/plan.md");
  const std::string documented{std::istreambuf_iterator<char>(file), {}};
  for (const JsonMember& member : json.members) {
    EXPECT_NE(std::string::npos, documented.find("`" + member.key + "`"))
        << member.key << " stands not in docs/plan.md";
    for (const JsonMember& inner : member.value.members) {
      if (member.key == "config") break;
      EXPECT_NE(std::string::npos, documented.find("`" + inner.key + "`")) << member.key << "." << inner.key;
    }
  }
}

}  // namespace
}  // namespace trireme
