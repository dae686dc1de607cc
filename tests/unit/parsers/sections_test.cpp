// Each section: its rules, its conversions, its old names.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "config_testing.h"

namespace trireme {
namespace {

using testing::Contains;
using testing::ErrorKeys;
using testing::Errors;
using testing::Has;
using testing::Parse;
using testing::ParseKeys;
using Keys = std::vector<std::string>;

ParseResult Optimizer(const std::string& section, const TrainFlags& flags = {}) {
  return ParseKeys("\"optimizer\": " + section, flags);
}

TEST(OptimizerSection, CFG_14_TheRuleOfDecayIsResolvedAndSaid) {
  const ParseResult adam = Optimizer(R"({"type":"Adam","params":{"lr":1e-3,"weight_decay":0.1}})");
  EXPECT_TRUE(adam.config.optimizer.decoupled_weight_decay);
  EXPECT_TRUE(Has(adam, Severity::kNotice, "CFG034", "optimizer.type"));
  const ParseResult l2 = Optimizer(R"({"type":"adam","params":{"adam_w_mode":false,"weight_decay":0.1}})");
  EXPECT_FALSE(l2.config.optimizer.decoupled_weight_decay);
  EXPECT_EQ(0.1, l2.config.optimizer.weight_decay);
  const ParseResult adamw = Optimizer(R"({"type":"AdamW","params":{"adam_w_mode":false}})");
  EXPECT_TRUE(adamw.config.optimizer.decoupled_weight_decay);
  EXPECT_EQ(0.0, adamw.config.optimizer.weight_decay);
  EXPECT_EQ(0.01, Optimizer(R"({"type":"AdamW","params":{"torch_adam":true}})").config.optimizer.weight_decay);
  EXPECT_EQ(0.0, Optimizer(R"({"type":"Adam","params":{"torch_adam":true}})").config.optimizer.weight_decay);
}

TEST(OptimizerSection, CFG_15_ClippingAmongTheParametersIsRefused) {
  const ParseResult r = Optimizer(R"({"type":"Adam","params":{"lr":6e-4,"max_grad_norm":1.0}})");
  ASSERT_EQ(Keys{"CFG033 optimizer.params.max_grad_norm"}, ErrorKeys(r));
  EXPECT_TRUE(Contains(Errors(r)[0].fix, "gradient_clipping"));
  EXPECT_EQ(Keys{"CFG033 optimizer.params.max_grad_norm"},
            ErrorKeys(Optimizer(R"({"type":"SGD","params":{"max_grad_norm":0}})")));
}

TEST(OptimizerSection, CFG_20_UnknownAndUnsupportedNamesListTheSupportedOnes) {
  const ParseResult muon = Optimizer(R"({"type":"Muon","params":{"lr":1e-4}})");
  ASSERT_EQ(Keys{"CFG009 optimizer.type"}, ErrorKeys(muon));
  EXPECT_TRUE(Contains(Errors(muon)[0].fix, "supported: Adam, AdamW, SGD, Adagrad, Lion, Lamb"));
  EXPECT_EQ(Keys{"CFG012 optimizer.type"}, ErrorKeys(Optimizer(R"({"type":"Admaw","params":{}})")));
  EXPECT_TRUE(Contains(Errors(Optimizer(R"({"type":"Admaw"})"))[0].fix, "did you mean \"AdamW\"?"));
  EXPECT_TRUE(Contains(Errors(Optimizer(R"({"type":"sgd"})"))[0].fix, "did you mean \"SGD\"?"));
  EXPECT_EQ(Keys{"CFG012 optimizer.type"}, ErrorKeys(Optimizer(R"({"params":{}})")));
  EXPECT_EQ(Keys{"CFG005 optimizer.type"}, ErrorKeys(Optimizer(R"({"type":3})")));
}

TEST(OptimizerSection, TypesAndRangesOfTheParameters) {
  const auto wrong = [](const std::string& params) {
    return ErrorKeys(Optimizer(R"({"type":"Adam","params":{)" + params + "}}"));
  };
  EXPECT_EQ(Keys{"CFG005 optimizer.params.lr"}, wrong(R"("lr":"1e-4")"));
  EXPECT_EQ(Keys{"CFG006 optimizer.params.lr"}, wrong(R"("lr":-1)"));
  EXPECT_EQ(Keys{"CFG005 optimizer.params.betas"}, wrong(R"("betas":[0.9])"));
  EXPECT_EQ(Keys{"CFG005 optimizer.params.betas"}, wrong(R"("betas":0.9)"));
  EXPECT_EQ(Keys{"CFG006 optimizer.params.betas"}, wrong(R"("betas":[0.9,1.0])"));
  EXPECT_EQ(Keys{"CFG004 optimizer.params.adamw_mode"}, wrong(R"("adamw_mode":true)"));
  EXPECT_EQ(Keys{"CFG009 optimizer.params.amsgrad"}, wrong(R"("amsgrad":true)"));
  EXPECT_EQ(Keys{}, wrong(R"("amsgrad":false,"set_grad_none":false)"));
  EXPECT_EQ(Keys{"CFG004 optimizer.params.momentum"}, wrong(R"("momentum":0.9)"));
  EXPECT_EQ(Keys{"CFG014 optimizer.params.bias_correction"}, wrong(R"("torch_adam":true,"bias_correction":false)"));
}

TEST(OptimizerSection, RefusedOnesNameTheNearestAndWhatIsLost) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"OneBitAdam", "use Adam:", "freeze_step"}, {"zerooneadam", "use Adam:", "bf16 halves them"},
      {"OneBitLamb", "use Lamb:", "freeze_step"}, {"Muon", "use AdamW:", "not orthogonalised"},
      {"MuSGD", "use SGD:", "lr for this width"}, {"RMSprop", "use Adam:", "betas [0, alpha]"},
      {"Adafactor", "use AdamW:", "kept whole"},  {"Rprop", "use Lion:", "one size"}};
  for (const auto& [type, nearest, lost] : cases) {
    const ParseResult r = Optimizer("{\"type\":\"" + type + "\",\"params\":{\"freeze_step\":9}}");
    ASSERT_EQ(Keys{"CFG009 optimizer.type"}, ErrorKeys(r)) << type;
    EXPECT_TRUE(Errors(r)[0].fix.starts_with(nearest)) << Errors(r)[0].fix;
    EXPECT_TRUE(Contains(Errors(r)[0].fix, lost)) << Errors(r)[0].fix;
  }
}

TEST(OptimizerSection, AdagradLionAndLambHaveTheirDefaultsAndKeys) {
  const OptimizerConfig adagrad = Optimizer(R"({"type":"adagrad"})").config.optimizer;
  EXPECT_EQ(OptimizerType::kAdagrad, adagrad.type);
  EXPECT_EQ(1e-2, adagrad.lr);
  EXPECT_EQ(1e-10, adagrad.eps);
  EXPECT_FALSE(adagrad.decoupled_weight_decay);
  const ParseResult started =
      Optimizer(R"({"type":"Adagrad","params":{"lr_decay":0.1,"initial_accumulator_value":0.5,"foreach":true}})");
  EXPECT_EQ(Keys{}, ErrorKeys(started)) << started.diagnostics.Render();
  EXPECT_EQ(0.1, started.config.optimizer.lr_decay);
  EXPECT_EQ(0.5, started.config.optimizer.initial_accumulator_value);

  const OptimizerConfig lion = Optimizer(R"({"type":"LION","params":{"weight_decay":0.1}})").config.optimizer;
  EXPECT_EQ(OptimizerType::kLion, lion.type);
  EXPECT_EQ(1e-3, lion.lr);
  EXPECT_EQ((std::array<double, 2>{0.9, 0.999}), lion.betas);
  EXPECT_TRUE(lion.decoupled_weight_decay);

  const OptimizerConfig lamb =
      Optimizer(R"({"type":"Lamb","params":{"max_coeff":2,"min_coeff":0.5,"eps_inside_sqrt":true}})").config.optimizer;
  EXPECT_EQ(OptimizerType::kLamb, lamb.type);
  EXPECT_EQ(2, lamb.max_coeff);
  EXPECT_EQ(0.5, lamb.min_coeff);
  EXPECT_TRUE(lamb.eps_inside_sqrt);
  EXPECT_TRUE(lamb.bias_correction);
  EXPECT_EQ(10, Optimizer(R"({"type":"lamb"})").config.optimizer.max_coeff);
  const auto wrong = [](const std::string& section) { return ErrorKeys(Optimizer(section)); };
  EXPECT_EQ(Keys{"CFG014 optimizer.params.min_coeff"}, wrong(R"({"type":"Lamb","params":{"min_coeff":11}})"));
  EXPECT_EQ(Keys{"CFG009 optimizer.params.amsgrad"}, wrong(R"({"type":"Lamb","params":{"amsgrad":true}})"));
  EXPECT_EQ(Keys{"CFG004 optimizer.params.eps"}, wrong(R"({"type":"Lion","params":{"eps":1e-8}})"));
  EXPECT_EQ(Keys{"CFG004 optimizer.params.betas"}, wrong(R"({"type":"Adagrad","params":{"betas":[0.9,0.99]}})"));
  EXPECT_EQ(Keys{"CFG033 optimizer.params.max_grad_norm"}, wrong(R"({"type":"Lamb","params":{"max_grad_norm":1}})"));
}

// DeepSpeed refuses an optimizer that it has no CPU kernel of, and names an escape flag. Here all but Lamb have one.
TEST(OptimizerSection, CFG_20_OffloadedOptimizers) {
  const auto offloaded = [](const std::string& type) {
    return ParseKeys(R"("zero_optimization":{"stage":2,"offload_optimizer":{"device":"cpu"}},"optimizer":{"type":")" +
                     type + "\"}");
  };
  for (const char* type : {"Adam", "AdamW", "SGD", "Adagrad", "Lion"}) {
    EXPECT_EQ(Keys{}, ErrorKeys(offloaded(type))) << type;
  }
  const ParseResult lamb = offloaded("Lamb");
  ASSERT_EQ(Keys{"CFG058 zero_optimization.offload_optimizer"}, ErrorKeys(lamb));
  EXPECT_TRUE(Contains(Errors(lamb)[0].fix, "remove offload_optimizer"));
}

TEST(OptimizerSection, Sgd) {
  const ParseResult r =
      Optimizer(R"({"type":"SGD","params":{"lr":0.03,"momentum":0.9,"weight_decay":0.1,"nesterov":true}})");
  ASSERT_EQ(Keys{}, ErrorKeys(r)) << r.diagnostics.Render();
  EXPECT_EQ(OptimizerType::kSgd, r.config.optimizer.type);
  EXPECT_EQ(0.9, r.config.optimizer.momentum);
  EXPECT_FALSE(r.config.optimizer.decoupled_weight_decay);
  EXPECT_EQ(Keys{"CFG014 optimizer.params.nesterov"},
            ErrorKeys(Optimizer(R"({"type":"SGD","params":{"nesterov":true}})")));
}

TEST(OptimizerSection, AbsentSectionNeedsALearningRate) {
  EXPECT_EQ(Keys{"CFG035 optimizer"}, ErrorKeys(ParseKeys(R"("gradient_clipping":1)", TrainFlags{})));
  EXPECT_EQ(OptimizerType::kAdamW, ParseKeys(R"("gradient_clipping":1)").config.optimizer.type);
  TrainFlags plan;
  plan.for_plan = true;
  const ParseResult planned = ParseKeys(R"("gradient_clipping":1)", plan);
  EXPECT_EQ(Keys{}, ErrorKeys(planned));
  const auto tells = [](const Problem& p) { return p.id == "CFG035" && p.severity == Severity::kWarning; };
  EXPECT_TRUE(std::ranges::any_of(planned.diagnostics.problems(), tells)) << "the run would stop";
  plan.lr = 1e-4;
  EXPECT_TRUE(std::ranges::none_of(ParseKeys(R"("gradient_clipping":1)", plan).diagnostics.problems(), tells));
}

// A plan goes on without what a run needs, and says so.
TEST(SchedulerSection, WhatARunNeedsIsAWarningOfAPlan) {
  const auto with = [](const char* total) {
    return fmt::format(R"("optimizer": {{"type": "AdamW", "params": {{"lr": "auto"}}}},
        "scheduler": {{"type": "WarmupDecayLR", "params": {{"warmup_num_steps": "auto"{}}}}})",
                       total);
  };
  const std::string is_auto = with(R"(, "total_num_steps": "auto")"), is_absent = with("");
  const Keys keys = {"CFG007 optimizer.params.lr", "CFG007 scheduler.params.warmup_num_steps",
                     "CFG007 scheduler.params.total_num_steps"};
  EXPECT_EQ(keys, ErrorKeys(ParseKeys(is_auto, TrainFlags{})));
  TrainFlags plan;
  plan.for_plan = true;
  const auto warnings = [&](const std::string& text) {
    const ParseResult planned = ParseKeys(text, plan);
    EXPECT_EQ(Keys{}, ErrorKeys(planned));
    Keys found;
    for (const Problem& problem : planned.diagnostics.problems()) {
      if (problem.severity == Severity::kWarning) found.push_back(problem.id + " " + problem.key);
    }
    return found;
  };
  EXPECT_EQ(keys, warnings(is_auto));
  EXPECT_EQ((Keys{keys[0], "CFG040 scheduler.params.total_num_steps", keys[1]}), warnings(is_absent));  // by place
  plan.lr = 1e-3;
  plan.lr_warmup_iters = 10;
  plan.train_iters = 100;
  EXPECT_EQ(Keys{}, warnings(is_auto));
  EXPECT_EQ(Keys{}, warnings(is_absent));
}

// Where DeepSpeed stops at the first step with a None in its arithmetic.
TEST(OptimizerSection, NullIsNoNumber) {
  for (const char* key : {"lr", "eps", "weight_decay", "betas"}) {
    const ParseResult r = Optimizer("{\"type\":\"AdamW\",\"params\":{\"" + std::string(key) + "\":null}}");
    EXPECT_EQ(Keys{"CFG005 optimizer.params." + std::string(key)}, ErrorKeys(r)) << r.diagnostics.Render();
  }
  EXPECT_EQ(Keys{"CFG005 gradient_clipping"}, ErrorKeys(ParseKeys(R"("gradient_clipping":null)")));
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("gradient_accumulation_steps":null)")));
}

ParseResult Scheduler(const std::string& section, const TrainFlags& flags = testing::WithLr(0.5)) {
  return ParseKeys("\"scheduler\": " + section, flags);
}

TEST(SchedulerSection, DefaultsOfTheFive) {
  const SchedulerConfig warmup = Scheduler(R"({"type":"WarmupLR","params":{}})").config.scheduler;
  EXPECT_EQ(0.5, warmup.warmup_max_lr);  // the optimizer's
  EXPECT_EQ(1000, warmup.warmup_num_steps);
  EXPECT_EQ(WarmupType::kLog, warmup.warmup_type);
  const SchedulerConfig decay =
      Scheduler(R"({"type":"WarmupDecayLR","params":{"total_num_steps":5000}})").config.scheduler;
  EXPECT_EQ(1e-3, decay.warmup_max_lr);  // not the optimizer's
  EXPECT_EQ(5000, decay.total_num_steps);
  EXPECT_EQ(0.5, Scheduler(R"({"type":"WarmupDecayLR","params":{"total_num_steps":9,"warmup_max_lr":null}})")
                     .config.scheduler.warmup_max_lr);
  const SchedulerConfig cosine =
      Scheduler(R"({"type":"WarmupCosineLR","params":{"total_num_steps":5000,"warmup_type":"linear"}})")
          .config.scheduler;
  EXPECT_EQ(1e-4, cosine.cos_min_ratio);
  EXPECT_EQ(WarmupType::kLinear, cosine.warmup_type);
  EXPECT_EQ(2000, Scheduler(R"({"type":"LRRangeTest","params":{}})").config.scheduler.lr_range_test_step_size);
  const SchedulerConfig cycle =
      Scheduler(R"({"type":"OneCycle","params":{"cycle_min_lr":0.1,"cycle_max_lr":1.1,"cycle_first_step_size":2,
        "cycle_first_stair_count":3}})")
          .config.scheduler;
  EXPECT_EQ(2, cycle.cycle_second_step_size);
  EXPECT_EQ(3, cycle.cycle_second_stair_count);
  EXPECT_TRUE(cycle.cycle_momentum);
}

TEST(SchedulerSection, MissingUnknownAndWrongParameters) {
  EXPECT_EQ(Keys{"CFG040 scheduler.params.total_num_steps"},
            ErrorKeys(Scheduler(R"({"type":"WarmupDecayLR","params":{}})")));
  EXPECT_EQ((Keys{"CFG040 scheduler.params.cycle_min_lr", "CFG040 scheduler.params.cycle_max_lr"}),
            ErrorKeys(Scheduler(R"({"type":"OneCycle","params":{}})")));
  EXPECT_EQ(Keys{"CFG040 scheduler.params"}, ErrorKeys(Scheduler(R"({"type":"WarmupLR"})")));
  EXPECT_EQ(Keys{"CFG004 scheduler.params.warmup_max_lr"},
            ErrorKeys(Scheduler(R"({"type":"WarmupCosineLR","params":{"total_num_steps":5000,"warmup_max_lr":1}})")));
  EXPECT_EQ(Keys{"CFG005 scheduler.params.warmup_num_steps"},
            ErrorKeys(Scheduler(R"({"type":"WarmupLR","params":{"warmup_num_steps":1.5}})")));
  EXPECT_EQ(Keys{"CFG006 scheduler.params.cycle_first_step_size"},
            ErrorKeys(Scheduler(
                R"({"type":"OneCycle","params":{"cycle_min_lr":0,"cycle_max_lr":1,"cycle_first_step_size":0}})")));
  EXPECT_EQ(Keys{"CFG006 scheduler.params.lr_range_test_step_size"},
            ErrorKeys(Scheduler(R"({"type":"LRRangeTest","params":{"lr_range_test_step_size":0}})")));
  EXPECT_EQ(Keys{"CFG009 scheduler.type"}, ErrorKeys(Scheduler(R"({"type":"StepLR","params":{}})")));
  EXPECT_EQ(Keys{"CFG012 scheduler.type"}, ErrorKeys(Scheduler(R"({"type":"warmuplr","params":{}})")));
  EXPECT_EQ("write \"WarmupLR\"", Errors(Scheduler(R"({"type":"warmuplr","params":{}})"))[0].fix);
}

// 1 warms up as 2 does; 0 has no meaning, and DeepSpeed refuses it.
TEST(SchedulerSection, CFG_17_ShortWarmUps) {
  EXPECT_EQ(Keys{"CFG006 scheduler.params.warmup_num_steps"},
            ErrorKeys(Scheduler(R"({"type":"WarmupDecayLR","params":{"warmup_num_steps":0,"total_num_steps":10}})")));
  EXPECT_EQ(Keys{},
            ErrorKeys(Scheduler(R"({"type":"WarmupDecayLR","params":{"warmup_num_steps":1,"total_num_steps":10}})")));
}

TEST(SchedulerSection, Warnings) {
  const ParseResult r = Scheduler(
      R"({"type":"WarmupDecayLR","params":{"warmup_num_steps":20,"total_num_steps":10,"warmup_type":"cubic"}})");
  EXPECT_EQ(Keys{}, ErrorKeys(r));
  EXPECT_TRUE(Has(r, Severity::kWarning, "CFG041", "scheduler.params.total_num_steps"));
  EXPECT_TRUE(Has(r, Severity::kWarning, "CFG042", "scheduler.params.warmup_max_lr"));
  EXPECT_TRUE(Has(r, Severity::kWarning, "CFG012", "scheduler.params.warmup_type"));
  EXPECT_EQ(WarmupType::kLog, r.config.scheduler.warmup_type);
}

ParseResult Zero(const std::string& keys, int64_t hidden = 0) {
  return ParseKeys("\"zero_optimization\": {" + keys + "}", testing::WithLr(), hidden);
}

TEST(ZeroSection, StageIsConvertedAsDeepSpeedDoes) {
  EXPECT_EQ(2, Zero(R"("stage":"2")").config.zero_optimization.zero_stage);
  EXPECT_EQ(2, Zero(R"("stage":2.0)").config.zero_optimization.zero_stage);
  EXPECT_EQ(1, Zero(R"("stage":true)").config.zero_optimization.zero_stage);
  const ParseResult automatic = Zero(R"("stage":"auto","offload_optimizer":{"device":"auto"})");
  EXPECT_EQ(0, automatic.config.zero_optimization.zero_stage);
  EXPECT_TRUE(Has(automatic, Severity::kNotice, "CFG015", "zero_optimization.stage"));
  EXPECT_TRUE(Has(automatic, Severity::kNotice, "CFG015", "zero_optimization.offload_optimizer.device"));
  for (const char* wrong : {"4", "-1", "1.5", "null", "[0, 1]", "\"two\""}) {
    EXPECT_EQ(1u, Errors(Zero("\"stage\":" + std::string(wrong))).size()) << wrong;
  }
}

TEST(ZeroSection, CFG_05_BucketSizesAreWholeNumbers) {
  EXPECT_EQ(15099494, Zero(R"("stage":3,"stage3_prefetch_bucket_size":"auto")", 4096)
                          .config.zero_optimization.stage3_prefetch_bucket_size);
  EXPECT_EQ(Keys{}, ErrorKeys(Zero(R"("stage":3,"stage3_param_persistence_threshold":"auto")", 4096)));
  EXPECT_EQ(16777216, Zero(R"("reduce_bucket_size":"auto")", 4096).config.zero_optimization.reduce_bucket_size);
  EXPECT_EQ(500000000,
            Zero(R"("stage3_prefetch_bucket_size":5e8)", 4096).config.zero_optimization.stage3_prefetch_bucket_size);
  const ParseResult fraction = Zero(R"("stage":3,"stage3_prefetch_bucket_size":15099494.4)", 4096);
  ASSERT_EQ(Keys{"CFG005 zero_optimization.stage3_prefetch_bucket_size"}, ErrorKeys(fraction));
  EXPECT_TRUE(Contains(Errors(fraction)[0].fix, "15099494"));
  EXPECT_EQ(Keys{}, ErrorKeys(Zero(R"("reduce_bucket_size":"500000000")")));
  EXPECT_EQ(Keys{}, ErrorKeys(Zero(R"("sub_group_size":1e14)")));
  EXPECT_EQ(Keys{"CFG005 zero_optimization.sub_group_size"}, ErrorKeys(Zero(R"("sub_group_size":1e20)")));
  for (const char* wrong : {"\"5e8\"", "1.5", "-1", "1e20"}) {
    EXPECT_EQ(1u, Errors(Zero("\"reduce_bucket_size\":" + std::string(wrong))).size()) << wrong;
  }
  EXPECT_EQ(Keys{"CFG006 zero_optimization.allgather_bucket_size"},
            ErrorKeys(Zero(R"("stage":1,"allgather_bucket_size":7)")));
}

TEST(ZeroSection, KeysWithoutEffectAreCheckedAndNamed) {
  EXPECT_EQ(Keys{}, ErrorKeys(Zero(R"("stage":3,"overlap_comm":null,"contiguous_gradients":"yes")")));
  EXPECT_EQ(Keys{"CFG005 zero_optimization.overlap_comm"}, ErrorKeys(Zero(R"("overlap_comm":2)")));
  EXPECT_EQ(Keys{"CFG006 zero_optimization.stage3_max_live_parameters"},
            ErrorKeys(Zero(R"("stage3_max_live_parameters":-1)")));
  EXPECT_EQ(Keys{"CFG011 zero_optimization.max_live_parameters"},
            ErrorKeys(Zero(R"("stage3_max_live_parameters":5,"max_live_parameters":5)")));
  const std::string live = R"(,"max_live_parameters":5)";
  EXPECT_TRUE(Contains(Zero("\"stage\":3" + live).diagnostics.Render(), "max_live_parameters: no effect here"));
  EXPECT_FALSE(Contains(Zero("\"stage\":2" + live).diagnostics.Render(), "max_live_parameters"));
  EXPECT_EQ(Keys{"CFG004 zero_optimization.leaf_module.clases"}, ErrorKeys(Zero(R"("leaf_module":{"clases":[]})")));
  EXPECT_EQ(Keys{"CFG009 zero_optimization.zenflow"}, ErrorKeys(Zero(R"("zenflow":{"topk_ratio":0.2})")));
  EXPECT_EQ(Keys{"CFG009 zero_optimization.zenflow"}, ErrorKeys(Zero(R"("zenflow":{})")));
  EXPECT_EQ(Keys{}, ErrorKeys(Zero(R"("zenflow":null)")));
}

TEST(ZeroSection, OldNamesAndTheOldForm) {
  EXPECT_EQ(7, Zero(R"("stage":3,"prefetch_bucket_size":7)").config.zero_optimization.stage3_prefetch_bucket_size);
  EXPECT_EQ(Keys{"CFG011 zero_optimization.prefetch_bucket_size"},
            ErrorKeys(Zero(R"("stage3_prefetch_bucket_size":7,"prefetch_bucket_size":7)")));
  const ParseResult gather = Zero(R"("stage3_gather_fp16_weights_on_model_save":true)");
  EXPECT_TRUE(Has(gather, Severity::kNotice, "CFG011", "zero_optimization.stage3_gather_fp16_weights_on_model_save"));
  const ParseResult old = ParseKeys(R"("zero_optimization":true,"allgather_size":500)");
  EXPECT_EQ(Keys{}, ErrorKeys(old));
  EXPECT_EQ(1, old.config.zero_optimization.zero_stage);
  EXPECT_EQ(500, old.config.zero_optimization.allgather_bucket_size);
  EXPECT_EQ(Keys{"CFG004 zero_optimization.cpu_offload_params"}, ErrorKeys(Zero(R"("cpu_offload_params":true)")));
}

TEST(ZeroSection, CFG_11_OffloadAsABooleanShowsAnObject) {
  const ParseResult r = Zero(R"("stage":2,"offload_optimizer":true)");
  ASSERT_EQ(Keys{"CFG005 zero_optimization.offload_optimizer"}, ErrorKeys(r));
  EXPECT_TRUE(Contains(Errors(r)[0].fix, R"({"device": "cpu"})"));
}

TEST(ZeroSection, CFG_12_OldOffloadNames) {
  EXPECT_EQ(Keys{"CFG011 zero_optimization.cpu_offload"},
            ErrorKeys(Zero(R"("stage":2,"cpu_offload":true,"offload_optimizer":{"device":"none"})")));
  const ParseResult old = Zero(R"("stage":2,"cpu_offload":true)");
  EXPECT_EQ(Keys{}, ErrorKeys(old));
  EXPECT_EQ(old.config.zero_optimization.offload_optimizer.device, OffloadDevice::kCpu);
  EXPECT_TRUE(Contains(old.diagnostics.Render(), "CFG011"));
  EXPECT_TRUE(Contains(old.diagnostics.Render(), R"("offload_optimizer": {"device": "cpu"})"));
}

TEST(ZeroSection, OffloadThatIsOffOrHasNoEffectPasses) {
  EXPECT_EQ(Keys{}, ErrorKeys(Zero(R"("stage":3,"offload_optimizer":{},"offload_param":null)")));
  EXPECT_EQ(Keys{}, ErrorKeys(Zero(R"("stage":3,"offload_optimizer":{"device":"none"})")));
  const ParseResult below = Zero(R"("stage":2,"offload_param":{"device":"cpu"})");
  EXPECT_EQ(Keys{}, ErrorKeys(below));
  EXPECT_EQ(below.config.zero_optimization.offload_param.device, OffloadDevice::kNone);
  EXPECT_EQ(Keys{"CFG036 zero_optimization.offload_param.nvme_path"},
            ErrorKeys(Zero(R"("stage":3,"offload_param":{"device":"nvme"})")));
  EXPECT_EQ(Keys{"CFG012 zero_optimization.offload_param.device"},
            ErrorKeys(Zero(R"("offload_param":{"device":"CPU"})")));
  EXPECT_EQ(Keys{"CFG009 zero_optimization.zero_quantized_weights"},
            ErrorKeys(Zero(R"("zero_quantized_weights":true)")));
}

TEST(ZeroSection, OffloadHasDeepSpeedsDefaultsAndChecks) {
  const ParseResult r = Zero(R"("stage":3,"offload_optimizer":{"device":"cpu"},"offload_param":{"device":"cpu"})");
  EXPECT_EQ(Keys{}, ErrorKeys(r));
  const OffloadOptimizerConfig& optimizer = r.config.zero_optimization.offload_optimizer;
  const OffloadParamConfig& param = r.config.zero_optimization.offload_param;
  EXPECT_EQ(optimizer.device, OffloadDevice::kCpu);
  EXPECT_TRUE(optimizer.pin_memory && param.pin_memory);
  EXPECT_EQ(optimizer.buffer_count, 4);
  EXPECT_EQ(optimizer.ratio, 1);
  EXPECT_EQ(param.device, OffloadDevice::kCpu);
  const ParseResult pages =
      Zero(R"("stage":3,"offload_param":{"device":"cpu","buffer_size":5},"offload_optimizer":{"pipeline_read":true})");
  EXPECT_EQ(Keys{}, ErrorKeys(pages));
  EXPECT_TRUE(Has(pages, Severity::kNotice, "CFG010", "zero_optimization.offload_param"));
  EXPECT_TRUE(Has(pages, Severity::kNotice, "CFG010", "zero_optimization.offload_optimizer"));
  EXPECT_EQ(Keys{"CFG036 zero_optimization.offload_optimizer.ratio"},
            ErrorKeys(Zero(R"("stage":2,"offload_optimizer":{"device":"cpu","ratio":0.5})")));
  EXPECT_EQ(Keys{"CFG006 zero_optimization.offload_optimizer.ratio"},
            ErrorKeys(Zero(R"("stage":3,"offload_optimizer":{"device":"cpu","ratio":1.5})")));
  EXPECT_EQ(1u, ErrorKeys(Zero(R"("stage":3,"offload_optimizer":{"device":"cpu","buffer_size":5})")).size());
}

TEST(OffloadSection, NvmeWithoutAFolderStaysInMemoryBelowStage3) {
  const ParseResult two = ParseKeys(R"("zero_optimization":{"stage":2,"offload_optimizer":{"device":"nvme"}})");
  EXPECT_EQ(Keys{}, ErrorKeys(two));
  EXPECT_EQ(OffloadDevice::kCpu, two.config.zero_optimization.offload_optimizer.device);
  EXPECT_TRUE(Has(two, Severity::kNotice, "CFG010", "zero_optimization.offload_optimizer.device"));
  EXPECT_EQ(Keys{"CFG036 zero_optimization.offload_optimizer.nvme_path"},
            ErrorKeys(ParseKeys(R"("zero_optimization":{"stage":3,"offload_optimizer":{"device":"nvme"}})")));
}

TEST(RecomputeSection, AnIntervalBesideAnotherPolicyIsAConflict) {
  EXPECT_EQ(Keys{"CFG008 pipeline.activation_checkpoint_interval"},
            ErrorKeys(ParseKeys(R"("pipeline":{"activation_checkpoint_interval":2},"trireme":{"recompute":"keep"})")));
  EXPECT_EQ(Keys{},
            ErrorKeys(ParseKeys(R"("pipeline":{"activation_checkpoint_interval":2},"trireme":{"recompute":"full"})")));
}

TEST(PrecisionSections, CFG_10_ScaleKeysInBf16AreOneNotice) {
  const ParseResult r = ParseKeys(
      R"("gradient_clipping":1,"trireme":{"deepspeed_accumulation":true},"bf16":{"enabled":true,"loss_scale":0,
      "initial_scale_power":10,"loss_scale_window":1000,"hysteresis":2,"min_loss_scale":1})");
  EXPECT_EQ(Keys{}, ErrorKeys(r));
  const std::vector<Problem> notices = testing::Of(r, Severity::kNotice);
  ASSERT_EQ(1u, notices.size()) << r.diagnostics.Render();
  EXPECT_TRUE(Contains(notices[0].what, "bf16 uses no loss scale"));
  EXPECT_TRUE(Contains(notices[0].what, "hysteresis"));
}

TEST(PrecisionSections, CFG_26_TextFalseNeverCountsAsTrue) {
  const ParseResult r = ParseKeys(
      R"("bf16":{"enabled":"true"},"zero_optimization":{"stage":1,"overlap_comm":"false"},"wall_clock_breakdown":"false")");
  EXPECT_EQ(Keys{}, ErrorKeys(r));
  EXPECT_TRUE(r.config.bf16.enabled);
  const std::string notices = r.diagnostics.Render();
  EXPECT_TRUE(Has(r, Severity::kNotice, "CFG013", "zero_optimization.overlap_comm")) << notices;
  EXPECT_TRUE(Contains(notices, "the text \"false\" is taken as false"));
  EXPECT_FALSE(Contains(notices, "wall_clock_breakdown: no effect"));
  const ParseResult offloaded =
      ParseKeys(R"("zero_optimization":{"stage":2,"offload_optimizer":{"device":"cpu","pin_memory":"False"}})");
  EXPECT_FALSE(offloaded.config.zero_optimization.offload_optimizer.pin_memory);
}

TEST(PrecisionSections, KeysAndDefaultsOfFp16) {
  const Fp16Config plain = ParseKeys(R"("fp16":{"enabled":true,"loss_scale":"auto"})").config.fp16;
  EXPECT_EQ(0, plain.loss_scale);
  EXPECT_EQ(16, plain.initial_scale_power);
  EXPECT_EQ(1000, plain.loss_scale_window);
  EXPECT_EQ(2, plain.hysteresis);
  EXPECT_FALSE(plain.consecutive_hysteresis);
  EXPECT_EQ(1, plain.min_loss_scale);
  const ParseResult r = ParseKeys(
      R"("fp16":{"enabled":true,"auto_cast":true,"loss_scale":0,"initial_scale_power":12,"loss_scale_window":200,
      "hysteresis":3,"consecutive_hysteresis":true,"min_loss_scale":1e-10},"trireme":{"scale_growth_quirk":true})");
  EXPECT_EQ(Keys{}, ErrorKeys(r));
  EXPECT_EQ(12, r.config.fp16.initial_scale_power);
  EXPECT_EQ(200, r.config.fp16.loss_scale_window);
  EXPECT_EQ(3, r.config.fp16.hysteresis);
  EXPECT_TRUE(r.config.fp16.consecutive_hysteresis);
  EXPECT_EQ(1e-10, r.config.fp16.min_loss_scale);
  EXPECT_TRUE(r.config.trireme.scale_growth_quirk);
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("fp16":{"enabled":true,"type":"fp16","opt_level":"O2"})")));
  const ParseResult never = ParseKeys(R"("fp16":{"enabled":true,"hysteresis":0})");
  EXPECT_TRUE(Has(never, Severity::kWarning, "CFG054", "fp16.hysteresis")) << never.diagnostics.Render();
}

TEST(PrecisionSections, ScaleChecksRunOnlyWithADynamicScale) {
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("fp16":{"enabled":false,"loss_scale_window":0})")));
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("fp16":{"enabled":true,"loss_scale":128,"loss_scale_window":0})")));
  EXPECT_EQ(Keys{"CFG006 fp16.loss_scale_window"},
            ErrorKeys(ParseKeys(R"("fp16":{"enabled":true,"loss_scale_window":0})")));
  EXPECT_EQ(Keys{"CFG006 fp16.min_loss_scale"}, ErrorKeys(ParseKeys(R"("fp16":{"enabled":true,"min_loss_scale":0})")));
  EXPECT_EQ(Keys{"CFG006 fp16.loss_scale"}, ErrorKeys(ParseKeys(R"("fp16":{"loss_scale":-1})")));
  EXPECT_EQ(Keys{"CFG005 fp16"}, ErrorKeys(ParseKeys(R"("fp16":true)")));
  EXPECT_EQ((Keys{"CFG005 fp16.loss_scale", "CFG005 fp16.loss_scale_window"}),
            ErrorKeys(ParseKeys(R"("fp16":{"loss_scale":true,"loss_scale_window":true})")));
  EXPECT_EQ(Keys{"CFG009 bf16.bf16_optimizer_states"},
            ErrorKeys(ParseKeys(R"("bf16":{"bf16_optimizer_states":true})")));
}

ParseResult DynamicBatching(const std::string& keys, const std::string& more = "") {
  return ParseKeys("\"data_efficiency\": {\"seed\": 7, \"data_sampling\": {\"dynamic_batching\": {" + keys + "}}}" +
                   more);
}

TEST(DataEfficiencySection, DynamicBatchingIsRead) {
  const ParseResult off = ParseKeys(R"("data_efficiency":{"enabled":true})");
  EXPECT_EQ(Keys{}, ErrorKeys(off));
  EXPECT_FALSE(off.config.data_efficiency.dynamic_batching.enabled);
  EXPECT_EQ(1234, off.config.data_efficiency.seed);
  const ParseResult r =
      DynamicBatching(R"("enabled":true,"max_tokens":4096,"lr_scaling_method":"sqrt","min_batch_size":2,
                         "max_batch_size":64,"sequence_picking_order":"random","verbose":true,"metrics_path":"x")");
  ASSERT_EQ(Keys{}, ErrorKeys(r));
  const DataEfficiencyConfig& c = r.config.data_efficiency;
  EXPECT_EQ(7, c.seed);
  EXPECT_TRUE(c.dynamic_batching.enabled);
  EXPECT_EQ(4096, c.dynamic_batching.max_tokens);
  EXPECT_EQ(RateScaling::kSqrt, c.dynamic_batching.lr_scaling_method);
  EXPECT_EQ(2, c.dynamic_batching.min_batch_size);
  EXPECT_EQ(64, c.dynamic_batching.max_batch_size);
  EXPECT_EQ(PickingOrder::kRandom, c.dynamic_batching.sequence_picking_order);
  EXPECT_TRUE(Has(r, Severity::kNotice, "CFG010", "data_efficiency.data_sampling.dynamic_batching"));
}

TEST(DataEfficiencySection, DynamicBatchingIsChecked) {
  const std::string at = "data_efficiency.data_sampling.dynamic_batching.";
  EXPECT_EQ(Keys{"CFG037 " + at + "max_tokens"}, ErrorKeys(DynamicBatching(R"("enabled":true)")));
  EXPECT_EQ(Keys{"CFG006 " + at + "max_batch_size"},
            ErrorKeys(DynamicBatching(R"("enabled":true,"max_tokens":64,"min_batch_size":3,"max_batch_size":2)")));
  EXPECT_EQ(Keys{"CFG012 " + at + "lr_scaling_method"},
            ErrorKeys(DynamicBatching(R"("enabled":true,"max_tokens":64,"lr_scaling_method":"cubic")")));
  EXPECT_EQ(Keys{"CFG012 " + at + "sequence_picking_order"},
            ErrorKeys(DynamicBatching(R"("enabled":true,"max_tokens":64,"sequence_picking_order":"shuffled")")));
  const ParseResult micro = Parse(R"({"train_micro_batch_size_per_gpu":4,"data_efficiency":{"data_sampling":
      {"dynamic_batching":{"enabled":true,"max_tokens":64}}}})");
  ASSERT_EQ(Keys{"CFG037 train_micro_batch_size_per_gpu"}, ErrorKeys(micro));
  EXPECT_TRUE(Contains(Errors(micro)[0].fix, "set it to 1"));
}

TEST(DataEfficiencySection, WhatChangesTrainingIsRefusedWhateverTheOuterSwitchSays) {
  EXPECT_EQ(Keys{"CFG009 data_efficiency.data_sampling.curriculum_learning.enabled"},
            ErrorKeys(ParseKeys(R"("data_efficiency":{"enabled":false,"data_sampling":{"curriculum_learning":
                {"enabled":true,"curriculum_metrics":{}}}})")));
  EXPECT_EQ(Keys{}, ErrorKeys(ParseKeys(R"("data_efficiency":{"data_sampling":{"curriculum_learning":
                {"enabled":false,"curriculum_metrics":{}}}})")));
}

}  // namespace
}  // namespace trireme
