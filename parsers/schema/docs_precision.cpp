// fp16, bf16, data_types, and the other ways of DeepSpeed to compute in few bits.
#include "parsers/schema/key_doc.h"

namespace trireme {
namespace {

constexpr const char* kHalves =
    "weights and activations take 2 bytes an element instead of 4; fp32 masters (4 bytes a "
    "parameter, divided by ZeRO) come with them";

constexpr KeyDoc kDocs[] = {
    {.key = "fp16", .meaning = "Training in fp16 with fp32 master weights and loss scaling."},
    {.key = "fp16.enabled",
     .meaning = "Compute in fp16. Not together with bf16.",
     .memory = kHalves,
     .speed = "tensor cores of every GPU since Volta",
     .result = "5 bits of exponent: the loss is scaled, and a step that overflows is skipped"},
    {.key = "fp16.loss_scale",
     .meaning = "A fixed factor of the loss; 0 adapts it to the run.",
     .result = "a step whose scaled gradients overflow is skipped"},
    {.key = "fp16.initial_scale_power",
     .meaning = "The first dynamic scale is 2 to this power.",
     .result = "from a high one the first steps are skipped until the scale fits",
     .drift = "32 in DeepSpeed before 2023, 16 since; the newer holds: fewer steps are skipped at the start"},
    {.key = "fp16.loss_scale_window",
     .meaning = "Steps without overflow after which the scale doubles.",
     .values = "above 0 where the scale is dynamic"},
    {.key = "fp16.hysteresis",
     .meaning = "Number of the overflow that first halves the scale; at ZeRO stage 0 each one does, as in DeepSpeed."},
    {.key = "fp16.consecutive_hysteresis",
     .meaning = "A step without overflow gives the whole hysteresis back; without it only a doubling does."},
    {.key = "fp16.min_loss_scale",
     .meaning = "The lowest scale. An overflow there ends the run (at stage 0 after trireme.max_skipped_steps).",
     .values = "above 0 where the scale is dynamic; fractions are taken",
     .deepspeed = "whole numbers only since 0.17.1; public files have fractions, which mean what they say"},
    {.key = "fp16.auto_cast", .meaning = "Cast the inputs of the model to fp16."},
    {.key = "fp16.fp16_master_weights_and_grads",
     .meaning = "Keep master weights and gradients in fp16.",
     .memory = "in DeepSpeed masters and gradients take 2 bytes a parameter each instead of 4",
     .result = "small updates are lost in rounding"},
    {.key = "fp16.type", .meaning = "A word of gpt-neox files, which names the type."},
    {.key = "fp16.fp16", .meaning = "A word of old files."},
    {.key = "fp16.opt_level", .meaning = "A word of Apex, from before DeepSpeed had fp16 of its own."},

    {.key = "bf16", .meaning = "Training in bf16 with fp32 master weights, without loss scaling."},
    {.key = "bf16.enabled",
     .meaning = "Compute in bf16. Not together with fp16.",
     .memory = kHalves,
     .speed = "tensor cores of GPUs since Ampere",
     .result = "the exponents of fp32 and 8 bits of precision; nothing overflows, so there is no loss scale",
     .deepspeed = "adds gradients up in bf16, where this program takes fp32: see data_types.grad_accum_dtype"},
    {.key = "bf16.check_grad_overflow",
     .meaning = "Skip an update whose gradient is not finite.",
     .result = "protects weights from one bad step",
     .deepspeed = "looks at it at ZeRO 1 and 2 only; here every stage skips such a step",
     .drift = "false in DeepSpeed before 0.19.3 (June 2026), true since; the newer holds, at every stage"},
    {.key = "bf16.immediate_grad_update",
     .meaning = "Add each gradient to the fp32 sum as soon as it is there, instead of after the backward pass.",
     .drift = "true in DeepSpeed before 0.17.1 (June 2025), false since; the sums are the same"},
    {.key = "bf16.bf16_master_weights_and_grads",
     .meaning = "Keep master weights and gradients in bf16.",
     .memory = "in DeepSpeed masters and gradients take 2 bytes a parameter each instead of 4",
     .result = "updates below 1/256 of a weight are lost"},
    {.key = "bf16.bf16_optimizer_states",
     .meaning = "Keep the moments in bf16.",
     .memory = "in DeepSpeed 4 bytes a parameter less",
     .result = "the second moment hardly moves: 1 - beta2 is below bf16's precision"},
    {.key = "bf16.loss_scale", .meaning = "A key of fp16 in a bf16 section."},
    {.key = "bf16.loss_scale_window", .meaning = "A key of fp16 in a bf16 section."},
    {.key = "bf16.initial_scale_power", .meaning = "A key of fp16 in a bf16 section."},
    {.key = "bf16.hysteresis", .meaning = "A key of fp16 in a bf16 section."},
    {.key = "bf16.consecutive_hysteresis", .meaning = "A key of fp16 in a bf16 section."},
    {.key = "bf16.min_loss_scale", .meaning = "A key of fp16 in a bf16 section."},
    {.key = "bf16.auto_cast", .meaning = "A key of fp16 in a bf16 section."},
    {.key = "bf16.accumulate_grads_in_fp32", .meaning = "A wish of old files: the sum of the gradients in fp32."},
    {.key = "bf16.check_overflow", .meaning = "A name that only a comment of DeepSpeed's has."},

    {.key = "data_types", .meaning = "Element types of what is neither weight nor activation."},
    {.key = "data_types.grad_accum_dtype",
     .meaning = "Type in which gradients add up over micro-batches and are held.",
     .memory = "4 bytes a parameter in fp32, 2 in the weights' type (divided over the ranks at ZeRO 2 and 3)",
     .result = "in 16 bits small gradients vanish beside a large sum",
     .values = "fp32, or the type of the weights",
     .by_default = "fp32",
     .deepspeed = "takes the type of the weights; \"trireme\": {\"deepspeed_accumulation\": true} does too"},
    {.key = "data_types.param_dtype", .meaning = "Restates the type of the weights; another one is an error."},
    {.key = "data_types.keep_in_fp32_modules", .meaning = "Modules whose buffers stay in fp32."},
    {.key = "data_types.buffer_dtype", .meaning = "Type of a module's buffers, such as rotary frequencies."},

    {.key = "amp",
     .meaning = "Apex's automatic mixed precision; its members go to Apex.",
     .result = "another recipe of casts than fp16 or bf16"},
    {.key = "amp.enabled", .meaning = "Switches Apex on."},
    {.key = "torch_autocast",
     .meaning = "PyTorch's autocast: weights stay fp32, products run in fewer bits.",
     .memory = "in DeepSpeed weights keep 4 bytes",
     .result = "close to bf16 with fp32 masters, cast by cast another one"},
    {.key = "torch_autocast.enabled", .meaning = "Switches autocast on."},
    {.key = "torch_autocast.dtype", .meaning = "Type of the products under autocast."},
    {.key = "torch_autocast.lower_precision_safe_modules",
     .meaning = "Classes whose gradients and gathered weights travel in that type."},
};

}  // namespace

std::span<const KeyDoc> PrecisionDocs() { return kDocs; }

}  // namespace trireme
