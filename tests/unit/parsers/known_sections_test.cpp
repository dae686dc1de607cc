// Sections that nothing acts on: off they pass, on they are named or refused, and their keys are checked as DeepSpeed
// checks them.
#include <gtest/gtest.h>

#include "config_testing.h"

namespace trireme {
namespace {

using testing::Contains;
using testing::ErrorKeys;
using testing::Errors;
using testing::Has;
using testing::ParseKeys;
using Keys = std::vector<std::string>;

TEST(KnownSections, ReportsAreNamedOnceWhenTheyAreOn) {
  const ParseResult on = ParseKeys(
      R"("gradient_clipping":1,"tensorboard":{"enabled":true,"output_path":"x","job_name":"y"},
         "wandb":{"enabled":true,"group":null},"csv_monitor":{"enabled":false},"flops_profiler":{"enabled":false},
         "timers":{"throughput":{"enabled":false}})");
  EXPECT_EQ(Keys{}, ErrorKeys(on)) << on.diagnostics.Render();
  ASSERT_EQ(1u, testing::Of(on, Severity::kNotice).size()) << on.diagnostics.Render();
  EXPECT_TRUE(Contains(on.diagnostics.Render(), "tensorboard, wandb: no effect here"));
}

TEST(KnownSections, CheckedOnesRefuseTypesUnknownKeysAndNull) {
  EXPECT_EQ(Keys{"CFG005 tensorboard.output_path"}, ErrorKeys(ParseKeys(R"("tensorboard":{"output_path":null})")));
  EXPECT_EQ(Keys{"CFG005 tensorboard.output_path"}, ErrorKeys(ParseKeys(R"("tensorboard":{"output_path":3})")));
  EXPECT_EQ(Keys{"CFG004 wandb.host"}, ErrorKeys(ParseKeys(R"("wandb":{"host":"x"})")));
  EXPECT_EQ(Keys{"CFG005 comms_logger"}, ErrorKeys(ParseKeys(R"("comms_logger":null)")));
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("comms_logger":{},"expert_parallel":null)")));
  EXPECT_EQ(Keys{"CFG004 comms_logger.verbos"}, ErrorKeys(ParseKeys(R"("comms_logger":{"verbos":true})")));
  EXPECT_EQ(Keys{"CFG006 hybrid_engine.max_out_tokens"},
            ErrorKeys(ParseKeys(R"("hybrid_engine":{"max_out_tokens":-1})")));
  EXPECT_EQ(Keys{"CFG004 timers.throughput.sync"}, ErrorKeys(ParseKeys(R"("timers":{"throughput":{"sync":true}})")));
}

TEST(KnownSections, OldMembersOfCompileAreTolerated) {
  const ParseResult r = ParseKeys(R"("compile":{"disable":false,"backend":"inductor"})");
  EXPECT_EQ(Keys{}, ErrorKeys(r)) << r.diagnostics.Render();
  EXPECT_TRUE(Has(r, Severity::kNotice, "CFG010", "compile"));
  EXPECT_EQ(Keys{"CFG009 compile.passes"}, ErrorKeys(ParseKeys(R"("compile":{"passes":["z1","autosp"]})")));
  EXPECT_EQ(Keys{"CFG012 compile.passes"}, ErrorKeys(ParseKeys(R"("compile":{"passes":["z2"]})")));
  EXPECT_EQ(Keys{"CFG005 compile.passes"}, ErrorKeys(ParseKeys(R"("compile":{"passes":"z3"})")));
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("compile":{"passes":null,"deepcompile":true})")));
}

TEST(KnownSections, WhatChangesTrainingIsRefusedByItsOwnSwitch) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"weight_quantization", "{}"},  // present is on
      {"quantize_training", R"({"enabled":true})"},
      {"progressive_layer_drop", R"({"enabled":true,"theta":0.5,"gamma":0.001})"},
      {"curriculum_learning", R"({"enabled":true,"curriculum_type":"seqlen"})"},
      {"sparse_attention", "{}"},
      {"expert_parallel", R"({"enabled":true,"autoep_size":2})"},
      {"torch_autocast", R"({"enabled":true,"dtype":"bfloat16"})"},
      {"amp", R"({"enabled":true,"opt_level":"O1"})"}};
  for (const auto& [name, value] : refused) {
    EXPECT_EQ(Keys{"CFG009 " + name}, ErrorKeys(ParseKeys("\"" + name + "\":" + value))) << name;
  }
  const std::vector<std::pair<std::string, std::string>> off = {
      {"weight_quantization", R"({"enabled":false})"},
      {"quantize_training", R"({"fp16_mixed_quantize":{"enabled":true}})"},  // DeepSpeed goes by its own switch
      {"progressive_layer_drop", R"({"enabled":false})"},
      {"sparse_attention", R"({"mode":"dense"})"},
      {"expert_parallel", "{}"},
      {"torch_autocast", R"({"enabled":false,"dtype":5})"},  // a loose section that is off is not looked at
      {"amp", R"({"enabled":false})"}};
  for (const auto& [name, value] : off) {
    EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys("\"" + name + "\":" + value))) << name;
  }
  const ParseResult compression = ParseKeys(
      R"("compression_training":{"layer_reduction":{"enabled":true},
         "row_pruning":{"shared_parameters":{"enabled":false}}})");
  ASSERT_EQ(Keys{"CFG009 compression_training"}, ErrorKeys(compression));
  EXPECT_TRUE(Contains(Errors(compression)[0].what, "(compression_training.layer_reduction.enabled)"));
}

TEST(KnownSections, RequiredKeysAndChoices) {
  EXPECT_EQ(Keys{"CFG040 curriculum_learning.enabled"}, ErrorKeys(ParseKeys(R"("curriculum_learning":{})")));
  EXPECT_EQ(Keys{"CFG040 progressive_layer_drop.enabled"},
            ErrorKeys(ParseKeys(R"("progressive_layer_drop":{"theta":0.5})")));
  EXPECT_EQ(Keys{"CFG012 sparse_attention.mode"}, ErrorKeys(ParseKeys(R"("sparse_attention":{"mode":"foo"})")));
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("checkpoint":{"tag_validation":"IGNORE"})")));
  EXPECT_EQ(Keys{"CFG012 checkpoint.tag_validation"}, ErrorKeys(ParseKeys(R"("checkpoint":{"tag_validation":"x"})")));
  EXPECT_EQ(Keys{"CFG009 checkpoint.writer.type"}, ErrorKeys(ParseKeys(R"("checkpoint":{"writer":{"type":"Mock"}})")));
  EXPECT_EQ(Keys{"CFG009 checkpoint.load_universal"}, ErrorKeys(ParseKeys(R"("checkpoint":{"load_universal":true})")));
  EXPECT_EQ(Keys{"CFG012 log_level"}, ErrorKeys(ParseKeys(R"("log_level":"loud")")));
  EXPECT_EQ(Keys{"CFG012 gradient_allreduce_op"}, ErrorKeys(ParseKeys(R"("gradient_allreduce_op":"max")")));
  EXPECT_EQ(Keys{"CFG005 vocabulary_size"}, ErrorKeys(ParseKeys(R"("vocabulary_size":"big")")));
  EXPECT_EQ(Keys{"CFG005 zero_optimization.stage"}, ErrorKeys(ParseKeys(R"("zero_optimization":{"stage":[1,2]})")));
  EXPECT_TRUE(Contains(Errors(ParseKeys(R"("zero_optimization":{"stage":[1,2]})"))[0].fix, "autotuner"));
}

}  // namespace
}  // namespace trireme
