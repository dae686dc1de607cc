// Keys of the top level that are no section, and the table of sections and keys that DeepSpeed knows beyond them.
#include <fmt/core.h>

#include "engine/base/strings.h"
#include "parsers/sections/known_sections.h"
#include "parsers/sections/sections.h"

namespace trireme {
namespace {

constexpr const char* kTunes = "it tunes a mechanism that this program does not have; the result is the same";
constexpr const char* kMonitor = "--log-json FILE has loss, rate, norm, loss scale and speed of every step";
constexpr const char* kMeans = "gradients are averaged either way";
constexpr const char* kChangesMath = "switch it off or remove it: it changes what is trained";
constexpr auto kChecked = SectionKind::kChecked;
constexpr auto kLoose = SectionKind::kLoose;
using known::Section;

constexpr KnownKey kKnown[] = {
    {"seq_parallel_communication_data_type", kNoEffect, "fp32", "sequence_parallel_size is 1", "fp32|bf16|fp16"},
    {"prescale_gradients", kNoEffect, "false", kMeans},
    {"gradient_predivide_factor", kNoEffect, "1.0", kMeans},
    {"gradient_allreduce_op", kRefused, "mean", "write \"mean\"", "mean|sum"},
    {"sparse_gradients", kNoEffect, "false", kTunes},
    {"graph_harvesting", kNoEffect, "false", kTunes},
    {"disable_allgather", kNoEffect, "false", kTunes},
    {"disable_python_gc", kNoEffect, "false", "no Python runs here"},
    {"zero_allow_untested_optimizer", kNoEffect, "false", "sharding works with every optimizer here"},
    {"zero_force_ds_cpu_optimizer", kNoEffect, "true", kTunes},
    {"allgather_size", kNoEffect, "500000000", "it belongs to \"zero_optimization\": true"},
    {"use_data_before_expert_parallelism", kNoEffect, "false", kTunes},
    {"managed_gradient_accumulation", kRefused, "true", "set it to true"},
    {"dataloader_drop_last", kNoEffect, "false",
     "every batch is full: samples beyond the last full batch wait for the next epoch"},
    {"wall_clock_breakdown", kNoEffect, "false", "--trace FILE has the time of every instruction"},
    {"memory_breakdown", kNoEffect, "false", "trireme plan has the memory by class"},
    {"dump_state", kNoEffect, "false", "--dump-config FILE writes every value with its origin"},
    {"log_level", kNoEffect, "", "--log-level decides", "debug|info|warning|error|critical"},
    {"vocabulary_size", kNoEffect, "0", "the model's description decides"},
    {"datastates_ckpt", kNoEffect, "", known::kFormats},
    Section("checkpoint", kNoEffect, "", known::kCheckpoint),
    Section("nebula", kNoEffect, known::kFormats, known::kNebula),
    Section("timers", kNoEffect, "", known::kTimers),
    Section("comms_logger", kNoEffect, "trireme plan has the traffic of a step, --trace FILE each transfer",
            known::kCommsLogger, kChecked),
    Section("flops_profiler", kNoEffect, "progress lines and --log-json have TFLOP/s and MFU", known::kFlopsProfiler),
    Section("tensorboard", kNoEffect, kMonitor, known::kTensorboard, kChecked),
    Section("wandb", kNoEffect, kMonitor, known::kWandb, kChecked),
    Section("csv_monitor", kNoEffect, kMonitor, known::kTensorboard, kChecked),
    Section("comet", kNoEffect, kMonitor, known::kComet, kChecked),
    Section("compile", kNoEffect, kTunes, known::kCompile, kChecked),
    Section("hybrid_engine", kNoEffect, "it generates between training steps, which this program does not",
            known::kHybridEngine, kChecked),
    Section("autotuning", kNoEffect, "the program trains with the values as they are", known::kAutotuning),
    Section("eigenvalue", kNoEffect, "DeepSpeed never reads it at the top level", known::kEigenvalue),
    Section("amp", kRefused, "use bf16 in place of Apex", known::kAmp),
    Section("torch_autocast", kRefused, "use bf16 with its fp32 master weights", known::kAutocast),
    Section("expert_parallel", kRefused, "set enabled to false: mixture of experts is not supported", known::kExperts,
            kLoose, /*nullable=*/true),
    Section("compression_training", kRefused, kChangesMath, known::kCompression),
    Section("quantize_training", kRefused, kChangesMath, known::kQuantizeTraining),
    Section("weight_quantization", kRefused, kChangesMath, known::kWeightQuantization, kChecked),
    Section("progressive_layer_drop", kRefused, kChangesMath, known::kLayerDrop),
    Section("curriculum_learning", kRefused, kChangesMath, known::kCurriculum),
};

void ReadClipping(SectionReader& root, const TrainFlags& flags, Config& config) {
  const bool absent = !root.Has("gradient_clipping") && !flags.clip_grad;
  root.Fill("gradient_clipping", config.gradient_clipping, flags.clip_grad, "--clip-grad");
  if (config.gradient_clipping < 0) {
    root.diagnostics().Notice(
        "CFG050", root.At("gradient_clipping"), "gradient_clipping",
        fmt::format("{} is below 0: nothing is clipped, as in DeepSpeed", config.gradient_clipping), "write 0");
  }
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
