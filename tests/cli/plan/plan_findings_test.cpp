// What `trireme plan` says about the config and the layout that it was given.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/bytes.h"
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

}  // namespace
}  // namespace trireme
