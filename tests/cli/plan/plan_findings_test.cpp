// What `trireme plan` says about the config and the layout that it was given.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "parsers/problems_error.h"
#include "tests/cli/plan/plan_command.h"

namespace trireme {
namespace {

using testing::At;
using testing::ExpectContains;

class PlanFindings : public testing::PlanCommand {
 protected:
  // The layout of a plan is the first that --suggest lists.
  static void ExpectIsFirst(const JsonValue& answer, const JsonValue& plan) {
    const std::vector<JsonValue>& layouts = At(answer, {"suggested", "layouts"}).elements;
    ASSERT_FALSE(layouts.empty());
    const JsonValue& first = layouts.front();
    for (const char* size : {"tensor", "pipeline", "data"}) {
      EXPECT_EQ(At(first, {size}).integer, At(plan, {"ranks", size}).integer) << size;
    }
    for (const char* size : {"micro_batch_size", "micro_batches"}) {
      EXPECT_EQ(At(first, {size}).integer, At(plan, {"batch", size}).integer) << size;
    }
    EXPECT_EQ(At(first, {"zero_stage"}).integer, At(plan, {"zero_stage", "configured"}).integer);
    EXPECT_EQ(At(first, {"virtual_stages"}).text,
              At(plan, {"config", "trireme.pipeline.virtual_stages", "value"}).text);
    EXPECT_EQ(At(first, {"needed_bytes"}).integer, At(plan, {"verdict", "needed_bytes"}).integer);
    EXPECT_EQ(At(first, {"step_seconds"}).number, At(plan, {"prediction", "step_seconds"}).number);
  }
};

// What the warning says of groups inside a node is what the plan of that layout has.
TEST_F(PlanFindings, GroupsAcrossNodesAreHeldAgainstThoseInsideANode) {
  const std::string config = Write(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
      "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})");
  std::vector<std::string> across = {
      config, "--model_name", "gpt-125m", "--cluster", "a100-nvswitch-hdr", "--num_nodes",
      "2",    "--num_gpus",   "2",        "--with"};
  std::vector<std::string> inside = across;
  across.push_back("tensor_parallel.tp_size=4");
  inside.insert(inside.end(), {"tensor_parallel.tp_size=2", "pipeline_parallel.pp_size=2"});
  const std::string text = Run(across);
  ExpectContains(text, "tensor-parallel groups of 4 ranks span nodes of 2");
  ExpectContains(text, "fix: set tensor_parallel.tp_size to 2 and pipeline_parallel.pp_size to 2");
  const JsonValue json = RunJson(inside);
  EXPECT_TRUE(At(json, {"warnings"}).elements.empty());
  const int64_t bytes = At(json, {"traffic", "tensor_parallel", "bytes"}).integer;
  ExpectContains(text, "groups of 2 with 2 times the pipeline stages send " + FormatBytes(bytes) + ", inside a node");
}

TEST_F(PlanFindings, WhatIsToldOfAConfigStandsInTheJsonToo) {
  const std::string config = Write(R"({"train_batch_size": 8, "bf16": {"enabled": true}})");
  const JsonValue json = RunJson({config, "--model_name", "gpt-125m"});
  EXPECT_EQ(code_, 0);
  std::vector<std::string> told;
  for (const JsonValue& notice : At(json, {"notices"}).elements) {
    told.push_back(At(notice, {"severity"}).text + " " + At(notice, {"id"}).text + " " + At(notice, {"key"}).text);
    ExpectContains(errors_, At(notice, {"what"}).text);
  }
  EXPECT_EQ((std::vector<std::string>{"warning CFG035 optimizer", "notice CFG050 gradient_clipping",
                                      "notice CFG053 data_types.grad_accum_dtype"}),
            told);
}

// A value of --with stands on no line of the file, and those that do keep theirs.
TEST_F(PlanFindings, ValuesOfWithAreFoundThere) {
  const std::string config = Write(R"({
    "train_batch_size": 8,
    "bf16": {"enabled": true},
    "zero_optimization": {
      "stage": 1,
      "reduce_bucket_size": 1000000
    },
    "gradient_clipping": 0.5, "tensor_parallel": {"autotp_size": 1}
  })");
  const std::vector<std::string> words = {config, "--model_name", "gpt-125m", "--num_gpus",
                                          "2",    "--resolved",   "--with"};
  const auto with = [&](std::vector<std::string> keys) {
    keys.insert(keys.begin(), words.begin(), words.end());
    return keys;
  };
  const JsonValue json = RunJson(with({"zero_optimization.stage=2", "tensor_parallel.tp_size=2",
                                       R"(optimizer={"type": "AdamW", "params": {"lr": 1e-4}})"}));
  const auto source = [&](const char* key) { return At(json, {"config", key, "source"}).text; };
  EXPECT_EQ("--with", source("zero_optimization.stage"));
  EXPECT_EQ("--with", source("tensor_parallel.tp_size"));
  EXPECT_EQ("--with", source("optimizer.params.lr"));
  EXPECT_EQ("default", source("optimizer.params.eps"));
  EXPECT_EQ(config + ":6", source("zero_optimization.reduce_bucket_size"));
  EXPECT_EQ(config + ":8", source("gradient_clipping"));
  try {
    RunJson(with({"zero_optimization.stage=9", "zero_optimization.allgather_bucket_size=few", "bf16.enabeld=true",
                  R"(data_types={"grad_accum_dtype": "fp16"})"}));
    FAIL();
  } catch (const ProblemsError& error) {
    for (const Problem& problem : error.problems()) {
      const bool of_file = problem.severity != Severity::kError;
      EXPECT_EQ(of_file ? config : "--with", problem.position.file) << Render(problem);
      EXPECT_TRUE(of_file || problem.position.line == 0) << Render(problem);
    }
    EXPECT_EQ(4, std::ranges::count(error.problems(), Severity::kError, &Problem::severity)) << error.what();
  }
}

// A figure with some zeros too many is named, before it is computed with.
TEST_F(PlanFindings, FiguresThatCannotBeCountedAreNamed) {
  const std::string config = Write(R"({"train_micro_batch_size_per_gpu": 1000000000,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})");
  try {
    Run({config, "--model_name", "gpt-13b", "--seq-length", "2048", "--cluster", "h200-pair", "--num_gpus", "1"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ("PLN032", error.id());
    ExpectContains(error.what(), "1000000000 (micro) x 1 (accumulation) x 1 (dp) sequences of 2048 tokens");
  }
}

// What `train` would choose is planned: it fits where the layout as it is does not, and the table says who chose.
TEST_F(PlanFindings, FillIsWhatTheRunWillChoose) {
  const std::string config = Write(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 32,
      "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}, "trireme": {"fill": true},
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})");
  std::vector<std::string> words = {config, "--model_name", "gpt-125m", "--num_gpus", "2"};
  ExpectContains(Run(words), "trireme.fill is on, and the memory of a device is not known");
  words.insert(words.end(), {"--gpu-memory-gib", "10"});
  const JsonValue filled = RunJson(words);
  EXPECT_EQ(code_, 0);
  EXPECT_TRUE(At(filled, {"fill", "fits"}).boolean);
  EXPECT_FALSE(At(filled, {"verdict", "tight"}).boolean);
  EXPECT_EQ(At(filled, {"verdict", "needed_bytes"}).integer, At(filled, {"fill", "needed_bytes"}).integer);
  EXPECT_EQ("trireme.fill", At(filled, {"config", "trireme.recompute", "source"}).text);
  const std::string chosen = At(filled, {"config", "trireme.recompute", "value"}).text;
  EXPECT_EQ(chosen, At(filled, {"fill", "recompute"}).text);
  words.insert(words.end(), {"--with", "trireme.fill=false"});
  RunJson(words);
  EXPECT_EQ(code_, 1) << "the memory is too large for this test to say something";
  words.push_back("trireme.recompute=" + chosen);
  const JsonValue by_hand = RunJson(words);
  EXPECT_EQ(code_, 0);
  EXPECT_EQ(At(filled, {"verdict", "needed_bytes"}).integer, At(by_hand, {"verdict", "needed_bytes"}).integer);
}

// 24 sequences do not go into 16 replicas; they do into 8 and fewer.
TEST_F(PlanFindings, SuggestLooksPastALayoutThatCannotBe) {
  const std::string best = folder_ / "best.json";
  const auto words = [&](const std::string& text) {
    return std::vector<std::string>{
        Write(text), "--model_name", "gpt-125m", "--cluster", "a100-nvswitch-hdr", "--num_nodes", "2", "--num_gpus",
        "8",         "--suggest",    best};
  };
  const std::string rest = R"("bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}})";
  for (const char* layout : {R"("train_micro_batch_size_per_gpu": 1)", R"("tensor_parallel": {"tp_size": 8})",
                             R"("pipeline_parallel": {"pp_size": 3})",
                             R"("tensor_parallel": {"tp_size": 3}, "pipeline_parallel": {"pp_size": 2},
                                "trireme": {"pipeline": {"virtual_stages": 2, "schedule": "1f1b"}})",
                             R"("tensor_parallel": {"tp_size": 3}, "pipeline_parallel": {"pp_size": 5},
                                "trireme": {"pipeline": {"schedule": "zero-bubble", "partition": "layers:0,2,4,6,8"}})"}) {
    std::filesystem::remove(best);
    const std::vector<std::string> asked = words("{\"train_batch_size\": 24, " + rest + ", " + layout + "}");
    EXPECT_THROW(Run({asked.begin(), asked.end() - 2}), Error) << layout;
    const std::string text = Run(asked);
    EXPECT_EQ(code_, 0);
    ExpectContains(text, "the config's own layout cannot be: ");
    ExpectContains(text, ", the first suggestion");
    ExpectContains(text, "batch       train_batch_size 24 = ");
    const JsonValue json = RunJson(
        {best, "--model_name", "gpt-125m", "--cluster", "a100-nvswitch-hdr", "--num_nodes", "2", "--num_gpus", "8"});
    EXPECT_EQ(code_, 0);
    EXPECT_EQ(24, At(json, {"batch", "train_batch_size"}).integer);
    EXPECT_TRUE(At(json, {"verdict", "fits"}).boolean);
    ExpectIsFirst(RunJson(asked), json);
  }
  // Nothing says what the batch is, or something else is wrong too.
  const auto id_of = [&](const std::string& text) {
    try {
      Run(words(text));
    } catch (const Error& error) {
      return error.id();
    }
    return std::string("none");
  };
  EXPECT_EQ("CFG023", id_of(R"({"train_micro_batch_size_per_gpu": 2, "tensor_parallel": {"tp_size": 3}})"));
  EXPECT_EQ("CFG020", id_of(R"({"train_batch_size": 24, "bf16": {"enabled": "no bool"}})"));
}

// Then what stands in for it is shown, with what the file gives to say; nobody typed the stand-in's sizes.
TEST_F(PlanFindings, ALayoutThatCannotBeIsShownByAStandInWhereNothingIsSuggested) {
  const std::string config = Write(R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 1,
      "tensor_parallel": {"tp_size": 3}, "trireme": {"pipeline": {"virtual_stages": 2}},
      "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})");
  const std::vector<std::string> words = {
      config, "--model_name", "gpt-125m", "--cluster", "a100-nvswitch-hdr",   "--num_nodes",
      "2",    "--num_gpus",   "8",        "--suggest", folder_ / "best.json", "--gpu-memory-gib",
      "0.1",  "--resolved"};
  const JsonValue json = RunJson(words);
  EXPECT_EQ(code_, 1);
  EXPECT_TRUE(At(json, {"suggested", "layouts"}).elements.empty());
  EXPECT_FALSE(At(json, {"notices"}).elements.empty());
  for (const JsonValue& notice : At(json, {"notices"}).elements) {
    ExpectContains(errors_, At(notice, {"id"}).text);
    ExpectContains(errors_, At(notice, {"what"}).text);
  }
  for (const char* key : {"tensor_parallel.tp_size", "pipeline_parallel.pp_size", "trireme.sequence_parallel",
                          "trireme.pipeline.virtual_stages", "trireme.pipeline.schedule"}) {
    EXPECT_EQ("derived: stands in for a layout that cannot be", At(json, {"config", key, "source"}).text) << key;
  }
  EXPECT_EQ(errors_.find("--with"), std::string::npos) << errors_;
}

}  // namespace
}  // namespace trireme
