// The sizes of tensor and pipeline parallelism, in all the places where files write them.
#include <fmt/core.h>

#include "parsers/sections/sections.h"

namespace trireme {
namespace {

constexpr const char* kInference = "it belongs to DeepSpeed's inference";
constexpr const char* kOwnSharding = "the layers of the models here know how they are sharded";
constexpr KnownKey kTensorKnown[] = {
    {"tp_overlap_comm", kNoEffect, "false", "communication overlaps by itself"},
    {"vocab_parallel_lm_head", kNoEffect, "", kOwnSharding},
    {"vocab_parallel_ce_backend", kNoEffect, "torch", kOwnSharding, "torch|liger"},
    {"preset_model", kNoEffect, "", kOwnSharding},
    {"partition_config", kNoEffect, "", kOwnSharding},
    {"injection_policy_tuple", kNoEffect, "", kOwnSharding},
    {"dtype", kNoEffect, "", "bf16.enabled and fp16.enabled decide"},
    {"keep_module_on_host", kNoEffect, "false", kInference},
    {"replace_with_kernel_inject", kNoEffect, "false", kInference},
    {"kernel_inject", kNoEffect, "false", kInference},
    {"enabled", kNoEffect, "true", "the size decides"},
};
constexpr KnownKey kTpKnown[] = {
    {"tp_grain_size", kNoEffect, "1", kOwnSharding},
    {"mpu", kNoEffect, "", kOwnSharding},
    {"tp_group", kNoEffect, "", kOwnSharding},
};
constexpr KnownKey kPipelineKnown[] = {
    {"partition", kNoEffect, "best", "the plan assigns layers to stages"},
    {"seed_layers", kNoEffect, "false", "DeepSpeed never reads it"},
    {"pipe_partitioned", kNoEffect, "true", "the result is the same"},
    {"grad_partitioned", kNoEffect, "true", "the result is the same"},
    {"use_reentrant", kNoEffect, "true", "it tunes PyTorch, not the result"},
};

// One size, gathered from several keys: the first counts, another number elsewhere is an error.
struct Size {
  int64_t value = 0;  // 0: not said
  std::string key;

  void Add(SectionReader& in, const char* name, double lowest) {
    int64_t read = 0;
    if (in.IsAuto(name)) {
      in.Take(name);
      return;
    }
    if (!in.Has(name)) {
      in.Know(name, KeyRecord::Type::kInteger, Between(lowest, 1'000'000));
      return;
    }
    if (!in.Read(name, read, Between(lowest, 1'000'000))) return;
    if (read == 0) return;  // off
    if (value == 0) {
      value = read;
      key = in.Path(name);
    } else if (value != read) {
      in.diagnostics().Error("CFG024", in.At(name), in.Path(name),
                             fmt::format("{} here, but {} is {}", read, key, value), "keep one of the two");
    }
  }
};

int64_t Resolve(SectionReader& root, const Size& size, const std::optional<int64_t>& flag, const char* flag_name,
                const char* key) {
  if (flag && *flag < 1) {
    root.diagnostics().Error("CFG006", {}, flag_name, fmt::format("{} is out of range: it must be at least 1", *flag),
                             "set a value at least 1");
    return 1;
  }
  if (flag && size.value != 0 && *flag != size.value) {
    root.diagnostics().Error("CFG008", root.Here(), size.key,
                             fmt::format("the config says {}, but {} says {}", size.value, flag_name, *flag),
                             fmt::format("remove {}, or the key", flag_name));
  }
  const int64_t value = size.value != 0 ? size.value : flag.value_or(1);
  root.Record(key, ToText(value), size.value != 0 ? std::string(kKeySource) + size.key : flag ? flag_name : "default");
  return value;
}

// Of DeepSpeed's own kind, where whole layers see a part of the sequence.
int64_t ReadSequenceParallel(SectionReader& root) {
  int64_t size = 1;
  if (!root.Read("sequence_parallel_size", size, Between(1, 1'000'000)) || size == 1) return size;
  root.diagnostics().Error(
      "CFG009", root.At("sequence_parallel_size"), "sequence_parallel_size",
      fmt::format("{}: sequences divided between replicas are not supported", size),
      fmt::format("set it to 1; --tensor-model-parallel-size {} --sequence-parallel divides layers and sequences",
                  size));
  return size;
}

}  // namespace

int64_t ParseParallel(SectionReader& root, const TrainFlags& flags, Config& config) {
  Size tp, pp;
  SectionReader tensor = root.Section("tensor_parallel", SectionKind::kChecked);
  tp.Add(tensor, "autotp_size", 0);
  const char* inner = tensor.Has("tensor_parallel") ? "tensor_parallel" : "tp";
  SectionReader nested = tensor.Section(inner, SectionKind::kChecked);
  tp.Add(nested, "tp_size", 1);
  nested.RejectUnread(kTpKnown);
  tp.Add(tensor, "tp_size", 1);
  tensor.RejectUnread(kTensorKnown);
  tp.Add(root, "model_parallel_size", 0);
  tp.Add(root, "model-parallel-size", 0);

  SectionReader parallel = root.Section("pipeline_parallel", SectionKind::kChecked);
  pp.Add(parallel, "pp_size", 1);
  pp.Add(parallel, "stages", 1);
  parallel.RejectUnread();
  SectionReader pipeline = root.Section("pipeline", SectionKind::kLoose);
  pp.Add(pipeline, "stages", 1);
  pipeline.Read("activation_checkpoint_interval", config.recompute.layers_per_checkpoint, AtLeast(0));
  pipeline.RejectUnread(kPipelineKnown);
  pp.Add(root, "pipe_parallel_size", 0);
  pp.Add(root, "pipe-parallel-size", 0);

  config.tensor_parallel.tp_size =
      Resolve(root, tp, flags.tensor_model_parallel_size, "--tensor-model-parallel-size", "tensor_parallel.tp_size");
  config.pipeline_parallel.pp_size = Resolve(root, pp, flags.pipeline_model_parallel_size,
                                             "--pipeline-model-parallel-size", "pipeline_parallel.pp_size");
  return ReadSequenceParallel(root);
}

}  // namespace trireme
