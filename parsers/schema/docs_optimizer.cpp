// "optimizer" and "scheduler". The rules themselves: docs/optimizers.md and engine/optim/lr_schedule.h.
#include "parsers/schema/key_doc.h"

namespace trireme {
namespace {

constexpr KeyDoc kOptimizer[] = {
    {.key = "optimizer",
     .meaning = "The update rule. Without the section: AdamW, and --lr must say the rate.",
     .by_default = "AdamW with --lr",
     .deepspeed = "leaves an absent section to the program around it"},
    {.key = "optimizer.type",
     .meaning = "Name of the rule; rules and formulas: docs/optimizers.md.",
     .memory =
         "fp32 state a parameter: 8 bytes for Adam, AdamW, Lamb; 4 for Lion, Adagrad and SGD with momentum; 0 for "
         "SGD. ZeRO 1 to 3 divide it",
     .result = "the rule itself",
     .values = "Adam, AdamW, Adagrad, Lion, Lamb in any letter case; SGD exactly so",
     .deepspeed = "also 1-bit optimizers, Muon, and classes of PyTorch: refused here with the nearest that works"},
    {.key = "optimizer.legacy_fusion", .meaning = "Which of DeepSpeed's fused fp16 updates runs."},
    {.key = "optimizer.params", .meaning = "Numbers of the rule; each type has its own."},
    {.key = "optimizer.params.lr",
     .meaning = "Learning rate; a scheduler overrides it step by step.",
     .result = "the size of each update"},
    {.key = "optimizer.params.betas",
     .meaning = "Decay of the running means: of the gradient, and of its square.",
     .values = "two numbers, each at least 0 and below 1"},
    {.key = "optimizer.params.eps", .meaning = "Added to the root of the second moment, so that nothing divides by 0."},
    {.key = "optimizer.params.weight_decay",
     .meaning = "Pull of the weights towards 0; of matrices only, unless --decay-all.",
     .by_default = "0; 0.01 for AdamW with torch_adam, which is PyTorch's"},
    {.key = "optimizer.params.bias_correction", .meaning = "Divide the moments by 1 - beta^t, as the paper does."},
    {.key = "optimizer.params.adam_w_mode",
     .meaning = "For type Adam: true decays decoupled, as AdamW (p -= lr wd p); false adds wd p to the gradient.",
     .result = "Adam is AdamW by default, in DeepSpeed as here"},
    {.key = "optimizer.params.torch_adam",
     .meaning = "PyTorch's class: the same rule, whose AdamW decays by 0.01 if nothing is said, and which always "
                "corrects the bias.",
     .key_class = KeyClass::kHonour},
    {.key = "optimizer.params.momentum",
     .meaning = "SGD: decay of the sum of gradients.",
     .memory = "above 0: 4 bytes a parameter, divided by ZeRO"},
    {.key = "optimizer.params.dampening", .meaning = "SGD: share of a gradient that its momentum leaves out."},
    {.key = "optimizer.params.nesterov", .meaning = "SGD: look ahead by one step of momentum."},
    {.key = "optimizer.params.lr_decay", .meaning = "Adagrad: the rate falls as 1 / (1 + (t - 1) lr_decay)."},
    {.key = "optimizer.params.initial_accumulator_value", .meaning = "Adagrad: where the sums of squares begin."},
    {.key = "optimizer.params.max_coeff", .meaning = "Lamb: largest trust ratio."},
    {.key = "optimizer.params.min_coeff", .meaning = "Lamb: smallest trust ratio."},
    {.key = "optimizer.params.eps_inside_sqrt", .meaning = "Lamb: add eps below the root instead of outside."},
    {.key = "optimizer.params.max_grad_norm",
     .meaning = "Clipping in the wrong place: gradient_clipping at the top level is the key.",
     .deepspeed = "an error as well",
     .key_class = KeyClass::kRefuse},
    {.key = "optimizer.params.amsgrad",
     .meaning = "Divide by the largest second moment so far.",
     .result = "another rule",
     .deepspeed = "an error on GPUs, ignored with offload"},
    {.key = "optimizer.params.maximize", .meaning = "Climb instead of descend.", .result = "another rule"},
    {.key = "optimizer.params.set_grad_none", .meaning = "PyTorch frees gradients instead of zeroing them."},
    {.key = "optimizer.params.fp32_optimizer_states",
     .meaning = "false: 16-bit moments under offload.",
     .memory = "in DeepSpeed 4 bytes a parameter less on the host",
     .result = "moments lose bits"},
    {.key = "optimizer.params.foreach", .meaning = "How PyTorch walks over the parameters."},
    {.key = "optimizer.params.fused", .meaning = "PyTorch's fused kernel."},
    {.key = "optimizer.params.capturable", .meaning = "PyTorch's update inside a CUDA graph."},
    {.key = "optimizer.params.differentiable", .meaning = "PyTorch differentiates through the update."},
    {.key = "zero_allow_untested_optimizer", .meaning = "Let ZeRO shard optimizers that DeepSpeed has not tested."},
    {.key = "zero_force_ds_cpu_optimizer", .meaning = "Insist on DeepSpeed's CPU Adam under offload."},
};

constexpr const char* kFirstTwo =
    "the first two updates run at the lowest rate: DeepSpeed's scheduler starts one step late, and so does this one";

constexpr KeyDoc kScheduler[] = {
    {.key = "scheduler",
     .meaning = "How the learning rate changes; lengths count optimizer steps that were applied.",
     .by_default = "none: the optimizer's lr, constant"},
    {.key = "scheduler.type",
     .meaning = "Name of the schedule.",
     .result = "the rate of each step",
     .values = "WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest, OneCycle, in this spelling",
     .by_default = "none: the optimizer's lr, constant",
     .deepspeed = "also classes of PyTorch, refused here"},
    {.key = "scheduler.params", .meaning = "Numbers of the schedule; it must be there, {} is enough for some."},
    {.key = "scheduler.params.warmup_min_lr", .meaning = "Rate at which the warm-up begins.", .result = kFirstTwo},
    {.key = "scheduler.params.warmup_max_lr",
     .meaning = "Rate at which the warm-up ends. null and \"auto\" mean the optimizer's lr.",
     .deepspeed = "the same: WarmupDecayLR does not take the optimizer's lr unless asked to",
     .drift =
         "0.001 in DeepSpeed's WarmupLR before 0.17.2 (June 2025), the optimizer's lr since; the newer holds. Write "
         "0.001 for the curve of an older run"},
    {.key = "scheduler.params.warmup_num_steps",
     .meaning = "Steps of the warm-up; 1 counts as 2.",
     .result = kFirstTwo},
    {.key = "scheduler.params.warmup_type",
     .meaning = "Shape of the warm-up.",
     .result = "log is steep at the start: half of the way after the square root of the steps",
     .values = "log, linear"},
    {.key = "scheduler.params.total_num_steps",
     .meaning = "Length of the schedule, warm-up included; the rate stays at its end after that.",
     .values = "whole number, at least 1",
     .by_default = "--train-iters; an error without it",
     .deepspeed = "must be written"},
    {.key = "scheduler.params.warmup_min_ratio",
     .meaning = "WarmupCosineLR: where the warm-up begins, as a share of the optimizer's lr."},
    {.key = "scheduler.params.cos_min_ratio",
     .meaning = "WarmupCosineLR: where the cosine ends, as a share of the optimizer's lr."},
    {.key = "scheduler.params.last_batch_iteration",
     .meaning = "Step from which the schedule goes on; a checkpoint knows it by itself."},
    {.key = "scheduler.params.lr_range_test_min_lr", .meaning = "LRRangeTest: first rate."},
    {.key = "scheduler.params.lr_range_test_step_size", .meaning = "LRRangeTest: steps of one rise."},
    {.key = "scheduler.params.lr_range_test_step_rate", .meaning = "LRRangeTest: rise, as a share of the first rate."},
    {.key = "scheduler.params.lr_range_test_staircase", .meaning = "LRRangeTest: rise in steps instead of evenly."},
    {.key = "scheduler.params.cycle_min_lr", .meaning = "OneCycle: lowest rate of the cycle."},
    {.key = "scheduler.params.cycle_max_lr", .meaning = "OneCycle: its peak."},
    {.key = "scheduler.params.decay_lr_rate", .meaning = "OneCycle: fall after the cycle, for each decay_step_size."},
    {.key = "scheduler.params.cycle_first_step_size", .meaning = "OneCycle: steps up to the peak."},
    {.key = "scheduler.params.cycle_second_step_size", .meaning = "OneCycle: steps down from it."},
    {.key = "scheduler.params.cycle_first_stair_count", .meaning = "OneCycle: stairs on the way up; 0 is a slope."},
    {.key = "scheduler.params.cycle_second_stair_count", .meaning = "OneCycle: stairs on the way down; 0 is a slope."},
    {.key = "scheduler.params.decay_step_size", .meaning = "OneCycle: steps of one fall after the cycle; 0: none."},
    {.key = "scheduler.params.cycle_momentum", .meaning = "OneCycle: cycle the first beta against the rate."},
    {.key = "scheduler.params.cycle_min_mom", .meaning = "OneCycle: first beta at the peak of the rate."},
    {.key = "scheduler.params.cycle_max_mom", .meaning = "OneCycle: first beta at the lowest rate."},
    {.key = "scheduler.params.decay_mom_rate", .meaning = "OneCycle: growth of the first beta after the cycle."},
};

}  // namespace

std::span<const KeyDoc> OptimizerDocs() { return kOptimizer; }
std::span<const KeyDoc> SchedulerDocs() { return kScheduler; }

}  // namespace trireme
