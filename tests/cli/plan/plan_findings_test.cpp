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

class PlanFindings : public testing::PlanCommand {};

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

}  // namespace
}  // namespace trireme
