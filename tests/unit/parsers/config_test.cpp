// The file as a whole: all problems at once, rules between sections, flags against the file.
#include "parsers/config.h"

#include <gtest/gtest.h>

#include "config_testing.h"
#include "engine/base/error.h"
#include "parsers/section_reader.h"

namespace trireme {
namespace {

using testing::Contains;
using testing::ErrorKeys;
using testing::Errors;
using testing::Has;
using testing::Parse;
using testing::ParseKeys;
using Keys = std::vector<std::string>;

TEST(Config, SevenMistakesAreSevenFindingsInTheOrderOfTheFile) {
  const ParseResult r = Parse(R"({
  "train_batch_size": 7,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_cliping": 1.0,
  "bf16": {"enabled": "maybe"},
  "optimizer": {"type": "Adamw2", "params": {}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}},
  "zero_optimization": {"stage": 5, "reduce_bucket_size": 1.5}
})",
                              2);
  EXPECT_EQ((Keys{"CFG020 train_batch_size", "CFG004 gradient_cliping", "CFG005 bf16.enabled", "CFG012 optimizer.type",
                  "CFG006 scheduler.params.warmup_num_steps", "CFG006 zero_optimization.stage",
                  "CFG005 zero_optimization.reduce_bucket_size"}),
            ErrorKeys(r))
      << r.diagnostics.Render();
  const std::vector<int> lines = {2, 4, 5, 6, 7, 8, 8};
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i], Errors(r)[i].position.line);
  for (const Problem& problem : Errors(r)) EXPECT_FALSE(problem.fix.empty()) << problem.key;
  try {
    r.diagnostics.ThrowIfErrors();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(78, ExitCode(error.code()));
    for (const std::string& key : ErrorKeys(r)) EXPECT_TRUE(Contains(error.what(), key.substr(7))) << key;
  }
}

TEST(Config, MissingFileAndSyntaxErrorAndWrongRoot) {
  const ParseResult missing = ParseConfigFile("/no/such/ds.json", {}, 1);
  EXPECT_EQ(Keys{"CFG001 "}, ErrorKeys(missing));
  EXPECT_TRUE(Contains(missing.diagnostics.Render(), "/no/such/ds.json"));
  const ParseResult syntax = Parse("{\n  \"train_batch_size\": 8,\n  \"bf16\": {\n");
  ASSERT_EQ(Keys{"CFG002 "}, ErrorKeys(syntax));
  EXPECT_EQ(4, Errors(syntax)[0].position.line);
  EXPECT_EQ(Keys{"CFG005 "}, ErrorKeys(Parse("[1]")));
  EXPECT_EQ(Keys{"CFG021 train_batch_size"}, ErrorKeys(Parse("")));
  EXPECT_EQ(Keys{"CFG003 bf16.enabled"}, ErrorKeys(ParseKeys(R"("bf16":{"enabled":true,"enabled":true})")));
}

TEST(Config, DefaultsAreDeepSpeeds) {
  const ParseResult r = Parse(R"({"train_batch_size":32,"optimizer":{"type":"ADAMW","params":{}}})", 4);
  ASSERT_FALSE(r.diagnostics.HasErrors()) << r.diagnostics.Render();
  const Config& c = r.config;
  EXPECT_EQ(8, c.batch.train_micro_batch_size_per_gpu);
  EXPECT_EQ(1.0, c.gradient_clipping);
  EXPECT_EQ(0, c.zero_optimization.zero_stage);
  EXPECT_EQ(DType::kFloat32, ComputeDType(c));
  EXPECT_EQ(OptimizerType::kAdamW, c.optimizer.type);
  EXPECT_EQ(0.0, c.optimizer.weight_decay);
  EXPECT_EQ(SchedulerType::kNone, c.scheduler.type);
  EXPECT_EQ(4, c.dp_size);
  EXPECT_TRUE(Has(r, Severity::kNotice, "CFG050", "gradient_clipping"));
}

TEST(Config, CFG_08_UnknownKeys) {
  const ParseResult near = ParseKeys(R"("gradient_cliping":1.0,"fp16":{"enable":true})");
  EXPECT_EQ((Keys{"CFG004 gradient_cliping", "CFG004 fp16.enable"}), ErrorKeys(near));
  EXPECT_EQ("did you mean \"gradient_clipping\"?", Errors(near)[0].fix);
  EXPECT_EQ("did you mean \"enabled\"?", Errors(near)[1].fix);
  // Another letter case is no other key.
  const ParseResult upper = Parse(R"({"Train_Batch_Size": 1, "BF16": {"enabled": true}, "": 1})");
  EXPECT_TRUE(Has(upper, Severity::kError, "CFG004", "BF16"));
  EXPECT_TRUE(Has(upper, Severity::kError, "CFG004", "Train_Batch_Size"));
  EXPECT_TRUE(Contains(upper.diagnostics.Render(), ": \"\": unknown key")) << upper.diagnostics.Render();
  // A misspelt type hides nothing of its params.
  const ParseResult types = ParseKeys(R"("optimizer":{"type":"Admw","params":{"lr":-1}},
      "scheduler":{"type":"warmuplr","params":{"warmup_min_lr":-1,"warmup_num_steps":2}})");
  EXPECT_TRUE(Has(types, Severity::kError, "CFG006", "optimizer.params.lr"));
  EXPECT_TRUE(Has(types, Severity::kError, "CFG006", "scheduler.params.warmup_min_lr"));
  // What a file says goes to the terminal escaped and cut.
  const ParseResult raw = ParseKeys("\"a\\u001b[2J\":1,\"" + std::string(20'000, 'k') + "\":2");
  EXPECT_TRUE(Has(raw, Severity::kWarning, "CFG004", "a\\x1b[2J"));
  EXPECT_LT(raw.diagnostics.Render().size(), 2000U);
  const std::string far = R"("completely_unheard_of":1,"_note":1,"#x":2,"comment":"c")";
  const ParseResult warned = ParseKeys(far);
  EXPECT_FALSE(warned.diagnostics.HasErrors());
  EXPECT_EQ(1, warned.diagnostics.num_warnings());
  TrainFlags strict = testing::WithLr();
  strict.strict = true;
  EXPECT_EQ(Keys{"CFG004 completely_unheard_of"}, ErrorKeys(ParseKeys(far, strict)));
  EXPECT_EQ(Keys{"CFG004 zero_optimization.bogus"}, ErrorKeys(ParseKeys(R"("zero_optimization":{"bogus":1})")));
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("zero_optimization":{"bogus":"auto","_note":"x"})")));
  // Keys that DeepSpeed knows do not count as unknown, and names far from short words are not suggested.
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("tensorboard":{"enabled":true},"fp61x":1)")));
}

TEST(Config, CFG_07_NoAutoSurvives) {
  const ParseResult r = Parse(R"({"train_micro_batch_size_per_gpu":1,"gradient_clipping":"auto",
    "zero_optimization":{"stage":2,"reduce_bucket_size":"auto"},
    "optimizer":{"type":"AdamW","params":{"lr":"auto","betas":"auto"}},
    "scheduler":{"type":"WarmupDecayLR","params":{"total_num_steps":"auto","warmup_num_steps":"auto"}}})",
                              1, {});
  EXPECT_EQ((Keys{"CFG007 optimizer.params.lr", "CFG007 scheduler.params.total_num_steps",
                  "CFG007 scheduler.params.warmup_num_steps"}),
            ErrorKeys(r))
      << r.diagnostics.Render();
  EXPECT_TRUE(Contains(Errors(r)[0].fix, "--lr"));
  EXPECT_EQ(1.0, r.config.gradient_clipping);
  EXPECT_EQ(500'000'000, r.config.zero_optimization.reduce_bucket_size);
}

TEST(Config, FlagsFillAutoAndAbsentKeys) {
  TrainFlags f;
  f.lr = 3e-4;
  f.weight_decay = 0.1;
  f.adam_beta2 = 0.95;
  f.adam_eps = 1e-6;
  f.clip_grad = 0.5;
  f.train_iters = 100;
  f.lr_warmup_iters = 10;
  f.bf16 = true;
  f.tensor_model_parallel_size = 2;
  const ParseResult r =
      Parse(R"({"train_micro_batch_size_per_gpu":1,"gradient_clipping":"auto","bf16":{"enabled":"auto"},
    "optimizer":{"type":"AdamW","params":{"lr":"auto"}},"scheduler":{"type":"WarmupDecayLR","params":
    {"warmup_max_lr":"auto","warmup_min_lr":"auto","total_num_steps":"auto","warmup_num_steps":"auto"}}})",
            4, f);
  ASSERT_EQ(Keys{}, ErrorKeys(r)) << r.diagnostics.Render();
  EXPECT_EQ(3e-4, r.config.optimizer.lr);
  EXPECT_EQ(0.1, r.config.optimizer.weight_decay);
  EXPECT_EQ(0.9, r.config.optimizer.betas[0]);
  EXPECT_EQ(0.95, r.config.optimizer.betas[1]);
  EXPECT_EQ(1e-6, r.config.optimizer.eps);
  EXPECT_EQ(0.5, r.config.gradient_clipping);
  EXPECT_EQ(100, r.config.scheduler.total_num_steps);
  EXPECT_EQ(10, r.config.scheduler.warmup_num_steps);
  EXPECT_EQ(3e-4, r.config.scheduler.warmup_max_lr);
  EXPECT_EQ(DType::kBFloat16, ComputeDType(r.config));
  EXPECT_EQ(2, r.config.tensor_parallel.tp_size);
  EXPECT_EQ(2, r.config.dp_size);
  EXPECT_EQ("--lr", testing::SourceOf(r, "optimizer.params.lr"));
  EXPECT_EQ("--adam-beta2", testing::SourceOf(r, "optimizer.params.betas"));
}

TEST(Config, NUM_23_TheClipFlagActsOrIsAConflict) {
  TrainFlags f;
  f.clip_grad = 0.7;
  const ParseResult filled = Parse(R"({"train_micro_batch_size_per_gpu":1,"optimizer":{"type":"AdamW"}})", 1, f);
  EXPECT_EQ(0.7, filled.config.gradient_clipping);
  EXPECT_EQ("--clip-grad", testing::SourceOf(filled, "gradient_clipping"));
  const ParseResult both =
      Parse(R"({"train_micro_batch_size_per_gpu":1,"gradient_clipping":0.5,"optimizer":{"type":"AdamW"}})", 1, f);
  EXPECT_EQ(Keys{"CFG008 gradient_clipping"}, ErrorKeys(both));
}

TEST(Config, CFG_16_AFlagThatDiffersFromTheFileIsAnError) {
  TrainFlags f;
  f.lr = 1e-4;
  f.gradient_accumulation_steps = 1;
  f.clip_grad = 1;
  f.adam_beta1 = 0.8;
  f.bf16 = true;
  f.tensor_model_parallel_size = 2;
  f.weight_decay = 0.1;  // equal: no finding
  const ParseResult r = Parse(R"({"train_micro_batch_size_per_gpu":1,"gradient_accumulation_steps":16,
    "gradient_clipping":0.5,"bf16":{"enabled":false},"tensor_parallel":{"tp_size":1},
    "optimizer":{"type":"AdamW","params":{"lr":1e-3,"betas":[0.9,0.95],"weight_decay":0.1}}})",
                              2, f);
  std::vector<std::string> keys = ErrorKeys(r);
  std::ranges::sort(keys);
  EXPECT_EQ((Keys{"CFG008 bf16.enabled", "CFG008 gradient_accumulation_steps", "CFG008 gradient_clipping",
                  "CFG008 optimizer.params.betas", "CFG008 optimizer.params.lr", "CFG008 tensor_parallel.tp_size"}),
            keys);
  const auto& problems = r.diagnostics.problems();
  const auto it = std::ranges::find(problems, "gradient_accumulation_steps", &Problem::key);
  EXPECT_EQ("the config says 16, but --gradient-accumulation-steps says 1", it->what);
}

TEST(Config, CFG_23_TwoPrecisionsAndTwoNames) {
  const ParseResult old = ParseKeys(R"("bfloat16":{"enabled":true})");
  EXPECT_TRUE(old.config.bf16.enabled);
  EXPECT_TRUE(Has(old, Severity::kNotice, "CFG011", "bfloat16"));
  EXPECT_EQ(Keys{"CFG030 fp16.enabled"}, ErrorKeys(ParseKeys(R"("bf16":{"enabled":true},"fp16":{"enabled":true})")));
  EXPECT_EQ(Keys{"CFG011 bfloat16.enabled"},
            ErrorKeys(ParseKeys(R"("bf16":{"enabled":false},"bfloat16":{"enabled":true})")));
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("bf16":null)")));
  TrainFlags f = testing::WithLr();
  f.fp64 = true;
  EXPECT_EQ(Keys{"CFG030 --fp64"}, ErrorKeys(ParseKeys(R"("bf16":{"enabled":true})", f)));
}

TEST(Config, Fp16WorksAndAutoIsOff) {
  const ParseResult on = ParseKeys(R"("fp16":{"enabled":true})");
  EXPECT_EQ(Keys{}, ErrorKeys(on));
  EXPECT_EQ(DType::kFloat16, ComputeDType(on.config));
  EXPECT_TRUE(Has(on, Severity::kNotice, "CFG053", "data_types.grad_accum_dtype"));
  TrainFlags flag = testing::WithLr();
  flag.fp16 = true;
  EXPECT_EQ(DType::kFloat16, ComputeDType(ParseKeys(R"("fp16":{"enabled":"auto"})", flag).config));
  EXPECT_EQ(Keys{"CFG009 fp16.fp16_master_weights_and_grads"},
            ErrorKeys(ParseKeys(R"("fp16":{"enabled":true,"fp16_master_weights_and_grads":true})")));
  const ParseResult autos = ParseKeys(R"("fp16":{"enabled":"auto"},"bf16":{"enabled":"auto"})");
  EXPECT_EQ(Keys{}, ErrorKeys(autos));
  EXPECT_EQ(DType::kFloat32, ComputeDType(autos.config));
  EXPECT_TRUE(Has(autos, Severity::kNotice, "CFG015", "bf16.enabled"));
}

TEST(Config, TypesOfGradients) {
  const Config plain = ParseKeys(R"("bf16":{"enabled":true})").config;
  EXPECT_EQ(DType::kFloat32, GradAccumDType(plain));
  EXPECT_EQ(DType::kFloat32, CommunicationDType(plain));
  const Config deepspeed = ParseKeys(R"("bf16":{"enabled":true},"trireme":{"deepspeed_accumulation":true})").config;
  EXPECT_EQ(DType::kBFloat16, GradAccumDType(deepspeed));
  EXPECT_EQ(DType::kBFloat16, CommunicationDType(deepspeed));
  const Config written = ParseKeys(R"("bf16":{"enabled":true},"trireme":{"deepspeed_accumulation":true},
    "data_types":{"grad_accum_dtype":"fp32"},"communication_data_type":"BF16")")
                             .config;
  EXPECT_EQ(DType::kFloat32, GradAccumDType(written));
  EXPECT_EQ(DType::kBFloat16, CommunicationDType(written));
  TrainFlags f = testing::WithLr();
  f.fp64 = true;
  EXPECT_EQ(DType::kFloat64, GradAccumDType(ParseKeys(R"("gradient_clipping":1)", f).config));
  EXPECT_EQ(Keys{"CFG012 communication_data_type"}, ErrorKeys(ParseKeys(R"("communication_data_type":"float16")")));
  EXPECT_EQ(Keys{"CFG007 communication_data_type"}, ErrorKeys(ParseKeys(R"("communication_data_type":"auto")")));
  EXPECT_EQ(Keys{"CFG012 data_types.grad_accum_dtype"},
            ErrorKeys(ParseKeys(R"("data_types":{"grad_accum_dtype":"int8"})")));
}

// The kernels add gradients up in fp32 or in the type of the weights.
TEST(Config, TypesOfGradientsWithoutKernelsAreRefused) {
  const auto errors = [](const std::string& keys, bool fp64 = false) {
    TrainFlags flags = testing::WithLr();
    flags.fp64 = fp64;
    return ErrorKeys(ParseKeys(keys, flags));
  };
  const std::string accumulate = R"("data_types":{"grad_accum_dtype":")", bf16 = R"("bf16":{"enabled":true},)",
                    fp16 = R"("fp16":{"enabled":true},)", travel = R"("communication_data_type":")";
  EXPECT_EQ(Keys{"CFG031 data_types.grad_accum_dtype"}, errors(accumulate + "bf16\"}"));
  EXPECT_EQ(Keys{}, errors(accumulate + "bf16\"}", /*fp64=*/true));  // everything is fp64 then
  EXPECT_EQ(Keys{}, errors(accumulate + "fp32\"}"));
  EXPECT_EQ(Keys{}, errors(bf16 + accumulate + "bf16\"}"));
  EXPECT_EQ(Keys{}, errors(bf16 + accumulate + "fp32\"}"));
  EXPECT_EQ(Keys{}, errors(fp16 + accumulate + "fp16\"}"));
  EXPECT_EQ(Keys{"CFG031 data_types.grad_accum_dtype"}, errors(fp16 + accumulate + "bf16\"}"));
  for (const std::string& precision : {std::string(), bf16}) {
    EXPECT_EQ(Keys{"CFG031 data_types.grad_accum_dtype"}, errors(precision + accumulate + "fp16\"}"));
  }
  for (const std::string& precision : {std::string(), bf16, fp16}) {
    EXPECT_EQ(Keys{}, errors(precision + travel + "fp16\""));
    EXPECT_EQ(Keys{}, errors(precision + travel + "bf16\""));
    EXPECT_EQ(Keys{}, errors(precision + travel + "fp32\""));
  }
  const ParseResult narrow = ParseKeys(accumulate + "bf16\"}");
  EXPECT_EQ("write fp32, or set bf16.enabled to true", testing::Errors(narrow)[0].fix);
}

TEST(Config, ParamTypeCanOnlyRestateTheWeights) {
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("bf16":{"enabled":true},"data_types":{"param_dtype":"torch.bfloat16"})")));
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("data_types":{"param_dtype":null})")));
  const ParseResult r = ParseKeys(R"("data_types":{"param_dtype":"bf16"})");
  ASSERT_EQ(Keys{"CFG031 data_types.param_dtype"}, ErrorKeys(r));
  EXPECT_EQ("set bf16.enabled to true, or remove the key", Errors(r)[0].fix);
  EXPECT_EQ(Keys{"CFG031 data_types.param_dtype"}, ErrorKeys(ParseKeys(R"("data_types":{"param_dtype":"auto"})")));
}

TEST(Config, ParallelSizesInEveryDialect) {
  const auto tp = [](const char* keys) {
    return Parse("{\"train_micro_batch_size_per_gpu\": 1, " + std::string(keys) + "}", 8);
  };
  EXPECT_EQ(4, tp(R"("tensor_parallel":{"autotp_size":4})").config.tensor_parallel.tp_size);
  EXPECT_EQ(4, tp(R"("tensor_parallel":{"tp":{"tp_size":4}})").config.tensor_parallel.tp_size);
  EXPECT_EQ(2, tp(R"("tensor_parallel":{"tp_size":2})").config.tensor_parallel.tp_size);
  EXPECT_EQ(2, tp(R"("pipeline":{"stages":2})").config.pipeline_parallel.pp_size);
  EXPECT_EQ(1, tp(R"("pipeline":{"stages":"auto"})").config.pipeline_parallel.pp_size);
  EXPECT_EQ(2, tp(R"("pipe-parallel-size":2)").config.pipeline_parallel.pp_size);
  const ParseResult both = tp(R"("tensor_parallel":{"tp_size":2},"pipeline_parallel":{"pp_size":2})");
  EXPECT_EQ(2, both.config.dp_size);
  EXPECT_EQ(2, both.config.batch.train_batch_size);
  EXPECT_EQ(Keys{"CFG024 tensor_parallel.tp_size"},
            ErrorKeys(tp(R"("tensor_parallel":{"autotp_size":4,"tp_size":2})")));
  EXPECT_EQ(Keys{"CFG023 tensor_parallel.tp_size"}, ErrorKeys(tp(R"("tensor_parallel":{"tp_size":3})")));
  EXPECT_EQ(Keys{"CFG024 data_parallel_size"}, ErrorKeys(tp(R"("data_parallel_size":4)")));
  EXPECT_EQ(Keys{"CFG006 tensor_parallel.tp_size"}, ErrorKeys(tp(R"("tensor_parallel":{"tp_size":0})")));
}

// A rule goes by the key's own name; whoever set another of its names finds the problem where that was set.
TEST(Config, WhatWithSetUnderAnotherNameIsFoundThere) {
  const auto positions = [](const std::string& keys, const std::string& with, const std::string& id) {
    const ParseResult result = ParseConfigText("{\"train_batch_size\": 8, " + keys + "}", "ds.json", testing::WithLr(),
                                               8, 0, std::vector<std::string>{with});
    std::string found;
    for (const Problem& problem : Errors(result)) {
      if (problem.id == id) found += problem.key + " at " + problem.position.file + ";";
    }
    return found;
  };
  for (const char* with :
       {"tensor_parallel.tp_size=3", "tensor_parallel.autotp_size=3", "model_parallel_size=3", "model-parallel-size=3",
        "tensor_parallel.tp.tp_size=3", R"(tensor_parallel={"autotp_size": 3})"}) {
    EXPECT_EQ("tensor_parallel.tp_size at --with;", positions(R"("bf16": {})", with, "CFG023")) << with;
  }
  for (const char* with : {"pipeline_parallel.pp_size=3", "pipeline_parallel.stages=3", "pipe_parallel_size=3",
                           R"(pipeline={"stages": 3})"}) {
    EXPECT_EQ("pipeline_parallel.pp_size at --with;", positions(R"("tensor_parallel": {"tp_size": 2})", with, "CFG023"))
        << with;
  }
  EXPECT_EQ("zero_optimization.offload_optimizer at --with;",
            positions(R"("zero_optimization": {"stage": 1}, "optimizer": {"type": "Lamb"})",
                      "zero_optimization.cpu_offload=true", "CFG058"));
  // Where the file says it, it is the file's.
  EXPECT_EQ("tensor_parallel.tp_size at ds.json;",
            positions(R"("tensor_parallel": {"tp_size": 3})", "model_parallel_size=3", "CFG023"));
  EXPECT_EQ("pipeline_parallel.pp_size at ds.json;",
            positions(R"("pipeline": {"stages": 3})", "pipe_parallel_size=3", "CFG023"));
  EXPECT_EQ("tensor_parallel.tp_size at ds.json;",
            positions(R"("model_parallel_size": 3)", "data_parallel_size=2", "CFG023"));
}

TEST(Config, CFG_21_PipelineWithHighStagesIsAllowedAndItsCostShown) {
  const ParseResult r =
      Parse(R"({"train_batch_size":4,"zero_optimization":{"stage":2},"pipeline_parallel":{"pp_size":2}})", 2);
  EXPECT_EQ(Keys{}, ErrorKeys(r));
  EXPECT_TRUE(Has(r, Severity::kNotice, "CFG052", "zero_optimization.stage"));
}

TEST(Config, SectionsThatAreRefusedPassWhenOff) {
  const char* sections[] = {"amp", "progressive_layer_drop", "curriculum_learning", "torch_autocast"};
  for (const std::string name : sections) {
    EXPECT_EQ(Keys{"CFG009 " + name}, ErrorKeys(ParseKeys("\"" + name + "\":{\"enabled\":true}"))) << name;
    EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys("\"" + name + "\":{\"enabled\":false}"))) << name;
  }
  // DeepSpeed looks at inner switches directly.
  EXPECT_EQ(
      Keys{"CFG009 data_efficiency.data_routing.random_ltd.enabled"},
      ErrorKeys(ParseKeys(R"("data_efficiency":{"enabled":false,"data_routing":{"random_ltd":{"enabled":true}}})")));
  EXPECT_EQ(
      Keys{},
      ErrorKeys(ParseKeys(R"("compression_training":{"sparse_pruning":{"shared_parameters":{"enabled":false}}})")));
  EXPECT_EQ(Keys{"CFG009 sequence_parallel_size"},
            ErrorKeys(Parse(R"({"train_batch_size":4,"sequence_parallel_size":2})", 8)));
  EXPECT_EQ(Keys{"CFG009 managed_gradient_accumulation"},
            ErrorKeys(ParseKeys(R"("managed_gradient_accumulation":false)")));
  EXPECT_EQ(Keys{"CFG009 gradient_allreduce_op"}, ErrorKeys(ParseKeys(R"("gradient_allreduce_op":"sum")")));
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("gradient_allreduce_op":"MEAN","sequence_parallel_size":1)")));
}

TEST(Config, CFG_24_KeysWithoutEffectAreNamed) {
  const ParseResult r =
      ParseKeys(R"("activation_checkpointing":{"partition_activations":true},"sparse_gradients":true,"aio":null)");
  std::string notices;
  for (const Problem& p : testing::Of(r, Severity::kNotice)) notices += p.what + "\n";
  EXPECT_TRUE(testing::Has(r, Severity::kNotice, "CFG010", "activation_checkpointing"));
  EXPECT_TRUE(Contains(notices, "sparse_gradients: no effect here"));
  EXPECT_FALSE(Contains(notices, "aio"));
}

TEST(Config, KeysAndDefaultsOfAio) {
  const AioConfig defaults = ParseKeys(R"("aio":null)").config.aio;
  EXPECT_EQ(1048576, defaults.block_size);
  EXPECT_EQ(8, defaults.queue_depth);
  EXPECT_EQ(1, defaults.intra_op_parallelism);
  EXPECT_FALSE(defaults.single_submit);
  EXPECT_TRUE(defaults.overlap_events);
  const ParseResult r = ParseKeys(
      R"("aio":{"block_size":8192,"queue_depth":32,"intra_op_parallelism":4,"thread_count":2,"single_submit":true,
         "overlap_events":false})");
  EXPECT_EQ(Keys{}, ErrorKeys(r));
  EXPECT_EQ(8192, r.config.aio.block_size);
  EXPECT_EQ(32, r.config.aio.queue_depth);
  EXPECT_EQ(4, r.config.aio.intra_op_parallelism);
  EXPECT_TRUE(r.config.aio.single_submit);
  EXPECT_FALSE(r.config.aio.overlap_events);
  std::string notices;
  for (const Problem& p : testing::Of(r, Severity::kNotice)) notices += p.what + "\n";
  EXPECT_TRUE(Contains(notices, "thread_count: no effect here")) << notices;
  EXPECT_EQ(Keys{"CFG006 aio.queue_depth"}, ErrorKeys(ParseKeys(R"("aio":{"queue_depth":0})")));
}

TEST(Config, StepsPerPrintAndOtherScalars) {
  EXPECT_EQ(5, ParseKeys(R"("steps_per_print":5)").config.steps_per_print);
  EXPECT_EQ(Keys{"CFG006 steps_per_print"}, ErrorKeys(ParseKeys(R"("steps_per_print":0)")));
  EXPECT_EQ(Keys{"CFG007 wall_clock_breakdown"}, ErrorKeys(ParseKeys(R"("wall_clock_breakdown":"auto")")));
  EXPECT_EQ(0.0, ParseKeys(R"("gradient_clipping":0)").config.gradient_clipping);
  EXPECT_EQ(Keys{"CFG005 gradient_clipping"}, ErrorKeys(ParseKeys(R"("gradient_clipping":"1.0")")));
  EXPECT_EQ(Keys{"CFG005 gradient_clipping"}, ErrorKeys(ParseKeys(R"("gradient_clipping":[1])")));
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("trireme":{"loss_normalization":"tokens"})")));
  EXPECT_EQ(Keys{"CFG009 trireme.loss_normalization"},
            ErrorKeys(ParseKeys(R"("trireme":{"loss_normalization":"per_microbatch"})")));
  EXPECT_EQ(Keys{"CFG012 trireme.loss_normalization"}, ErrorKeys(ParseKeys(R"("trireme":{"loss_normalization":"x"})")));
}

TEST(Config, EveryReadKeyHasOneRowOfOrigin) {
  const ParseResult r = ParseKeys(R"("zero_optimization":{"stage":1})");
  EXPECT_EQ("ds.json:1", testing::SourceOf(r, "zero_optimization.stage"));
  EXPECT_EQ("default", testing::SourceOf(r, "zero_optimization.reduce_bucket_size"));
  EXPECT_TRUE(Contains(testing::SourceOf(r, "optimizer.decoupled_weight_decay"), "derived"));
  for (const Origin& a : r.config.origins) {
    EXPECT_EQ(1, std::ranges::count(r.config.origins, a.key, &Origin::key)) << a.key;
    EXPECT_FALSE(a.source.empty()) << a.key;
  }
}

}  // namespace
}  // namespace trireme
