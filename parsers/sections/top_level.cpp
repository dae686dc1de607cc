// Keys of the top level that are no section, and the table of sections and keys that DeepSpeed knows beyond them.
#include <fmt/core.h>

#include "engine/base/strings.h"
#include "parsers/sections/sections.h"

namespace trireme {
namespace {

constexpr const char* kTunes = "it tunes a mechanism that this program does not have; the result is the same";
constexpr const char* kReport = "this report is not made yet; training is the same";
constexpr const char* kChangesMath = "switch it off or remove it: it changes what is trained";

constexpr KnownKey kKnown[] = {
    {"seq_parallel_communication_data_type", kNoEffect, "fp32", "sequence parallelism is off"},
    {"prescale_gradients", kNoEffect, "false", "gradients are averaged either way"},
    {"gradient_predivide_factor", kNoEffect, "1.0", "gradients are averaged either way"},
    {"sparse_gradients", kNoEffect, "false", kTunes},
    {"graph_harvesting", kNoEffect, "false", kTunes},
    {"disable_allgather", kNoEffect, "false", kTunes},
    {"zero_allow_untested_optimizer", kNoEffect, "false", "sharding works with every optimizer here"},
    {"zero_force_ds_cpu_optimizer", kNoEffect, "true", kTunes},
    {"allgather_size", kNoEffect, "500000000", "it belongs to \"zero_optimization\": true"},
    {"use_data_before_expert_parallelism", kNoEffect, "false", kTunes},
    {"dataloader_drop_last", kNoEffect, "false",
     "every batch is full: samples beyond the last full batch wait for the next epoch"},
    {"checkpoint", kNoEffect, "", "checkpoints are native, written atomically, and load into any layout"},
    {"nebula", kNoEffect, "", "checkpoints are native, written atomically, and load into any layout"},
    {"datastates_ckpt", kNoEffect, "", "checkpoints are native, written atomically, and load into any layout"},
    {"wall_clock_breakdown", kNoEffect, "false", "--trace FILE has the time of every instruction"},
    {"memory_breakdown", kNoEffect, "false", "trireme plan has the memory by class"},
    {"dump_state", kNoEffect, "false", kReport},
    {"log_level", kNoEffect, "", kReport},
    {"vocabulary_size", kNoEffect, "", "the model's description decides"},
    {"timers", kNoEffect, "", kReport},
    {"comms_logger", kNoEffect, "", kReport},
    {"flops_profiler", kNoEffect, "", kReport},
    {"tensorboard", kNoEffect, "", kReport},
    {"wandb", kNoEffect, "", kReport},
    {"csv_monitor", kNoEffect, "", kReport},
    {"comet", kNoEffect, "", kReport},
    {"compile", kNoEffect, "", kTunes},
    {"hybrid_engine", kNoEffect, "", "it generates between training steps, which this program does not"},
    {"autotuning", kNoEffect, "", "the program trains with the values as they are"},
    {"eigenvalue", kNoEffect, "", "DeepSpeed never reads it at the top level"},
    {"gradient_allreduce_op", kRefused, "mean", "write \"mean\""},
    {"managed_gradient_accumulation", kRefused, "true", "set it to true"},
    {"sequence_parallel_size", kRefused, "1", "set it to 1: sequence parallelism is not supported yet"},
    {"amp", kRefused, "", "use bf16 in place of Apex"},
    {"torch_autocast", kRefused, "", "use bf16 with its fp32 master weights"},
    {"expert_parallel", kRefused, "", "set enabled to false: mixture of experts is not supported yet"},
    {"sparse_attention", kRefused, "", kChangesMath},
    {"compression_training", kRefused, "", kChangesMath},
    {"quantize_training", kRefused, "", kChangesMath},
    {"weight_quantization", kRefused, "", kChangesMath},
    {"progressive_layer_drop", kRefused, "", kChangesMath},
    {"curriculum_learning", kRefused, "", kChangesMath},
    {"elasticity", kRefused, "", "set enabled to false and write the three batch numbers"},
};

void ReadClipping(SectionReader& root, const TrainFlags& flags, Config& config) {
  const bool absent = !root.Has("gradient_clipping") && !flags.clip_grad;
  root.Fill("gradient_clipping", config.gradient_clipping, flags.clip_grad, "--clip-grad");
  if (absent) {
    root.diagnostics().Notice("CFG050", root.Here(), "gradient_clipping",
                              "absent: gradients are clipped to norm 1, DeepSpeed's default since 0.19.3 (0 before)",
                              "write the value that you want");
  }
}

void ReadCommunicationType(SectionReader& root, Config& config) {
  std::optional<std::string> text;
  if (!root.ReadOptional("communication_data_type", text)) return;
  const std::string lower = ToLower(*text);
  if (lower == "fp16" || lower == "bf16" || lower == "fp32") {
    config.communication_data_type = ParseDType(lower);
  } else {
    root.diagnostics().Error("CFG012", root.At("communication_data_type"), "communication_data_type",
                             fmt::format("{} is no type for communication", Quoted(*text)),
                             "write fp32 or bf16, or remove the key");
  }
}

}  // namespace

std::span<const KnownKey> KnownTopLevelKeys() { return kKnown; }

void ParseTopLevel(SectionReader& root, const TrainFlags& flags, Config& config) {
  ReadClipping(root, flags, config);
  ReadCommunicationType(root, config);
  std::optional<int64_t> steps;
  if (root.IsAuto("steps_per_print")) {
    root.Take("steps_per_print");
  } else if (root.ReadOptional("steps_per_print", steps, AtLeast(1))) {
    config.steps_per_print = *steps;
  }
  if (!steps) root.Record("steps_per_print", ToText(config.steps_per_print), "default");
  config.fp64 = flags.fp64;
  if (flags.seed) config.seed = *flags.seed;
  root.Record("seed", ToText(config.seed), flags.seed ? "--seed" : "default");
}

}  // namespace trireme
