// "zero_optimization". Bucket and threshold keys count elements. Facts: DeepSpeed 0.19, runtime/zero/config.py.
#include <fmt/core.h>

#include "parsers/sections/sections.h"

namespace trireme {
namespace {

constexpr const char* kTunes = "it tunes a mechanism that this program does not have; the result is the same";
constexpr const char* kLossy = "set it to false: lossy communication is not supported";

constexpr KnownKey kKnown[] = {
    {"use_multi_rank_bucket_allreduce", kNoEffect, "true", kTunes},
    {"allgather_partitions", kNoEffect, "true", kTunes},
    {"elastic_checkpoint", kNoEffect, "false", "every checkpoint loads into any layout"},
    {"ignore_unused_parameters", kNoEffect, "true", "a GPT uses all its parameters"},
    {"legacy_stage1", kRefused, "false", "set it to false: DeepSpeed has removed it too"},
    {"zero_hpz_partition_size", kNoEffect, "1", kTunes},
    {"zero_quantized_weights", kRefused, "false", kLossy},
    {"zero_quantized_nontrainable_weights", kRefused, "false", kLossy},
    {"zero_quantized_gradients", kRefused, "false", kLossy},
    {"zeropp_loco_param", kNoEffect, "", "it belongs to quantised gradients, which are off"},
    {"mics_shard_size", kNoEffect, "-1", kTunes},
    {"mics_hierarchical_params_gather", kNoEffect, "false", kTunes},
    {"memory_efficient_linear", kNoEffect, "true", kTunes},
    {"pipeline_loading_checkpoint", kNoEffect, "false", kTunes},
    {"override_module_apply", kNoEffect, "true", kTunes},
    {"log_trace_cache_warnings", kNoEffect, "false", kTunes},
    {"enable_sanity_checks", kNoEffect, "false", kTunes},
    {"save_muon_momentum_buffer_in_memory", kNoEffect, "false", kTunes},
    {"leaf_module", kNoEffect, "", kTunes},
    {"zenflow", kRefused, "", "remove it: it updates only a part of the gradient each step"},
    {"stage3_module_granularity_threshold", kNoEffect, "0", kTunes},
    {"module_granularity_threshold", kNoEffect, "0", kTunes},
    {"stage3_use_all_reduce_for_fetch_params", kNoEffect, "false", kTunes},
    {"use_all_reduce_for_fetch_params", kNoEffect, "false", kTunes},
    {"stage3_allgather_sequential", kNoEffect, "false", kTunes},
    {"allgather_sequential", kNoEffect, "false", kTunes},
    {"cpu_offload_use_pin_memory", kNoEffect, "false", "DeepSpeed ignores it too"},
};

// A key with a long (stage3_x) and a short (x) name. Both at once are an error, as in DeepSpeed.
template <class T, class... R>
void ReadAlias(SectionReader& in, const std::string& key, T& value, R... range) {
  const std::string short_name = key.substr(std::string_view("stage3_").size());
  if (!in.Has(short_name)) {
    in.Read(key, value, range...);
    in.Know(short_name);
    return;
  }
  if (in.Has(key)) {
    in.diagnostics().Error("CFG011", in.At(short_name), in.Path(short_name),
                           fmt::format("this and {} are one key under two names", key),
                           fmt::format("keep {} only", key));
    in.Take(key);
  }
  in.Read(short_name, value, range...);
}

// "auto" sizes follow from the model, as Hugging Face and accelerate fill them.
void ReadSize(SectionReader& in, const char* key, int64_t& value, int64_t by_model, const char* rule) {
  if (in.IsAuto(key) && by_model > 0) {
    in.Take(key);
    value = by_model;
    in.Record(key, ToText(value), fmt::format("\"auto\": {}", rule));
  } else {
    in.Read(key, value, AtLeast(0));
  }
}

// The legacy form: true is stage 1, false stage 0.
bool ReadLegacy(SectionReader& root, ZeroConfig& c) {
  const JsonValue* value = root.Take("zero_optimization");
  if (value == nullptr || value->kind != JsonValue::Kind::kBool) return false;
  c.zero_stage = value->boolean ? 1 : 0;
  if (value->boolean) root.Read("allgather_size", c.allgather_bucket_size, AtLeast(0));
  root.Record("zero_optimization.stage", ToText(static_cast<int64_t>(c.zero_stage)), "");
  root.diagnostics().Notice("CFG011", root.At("zero_optimization"), "zero_optimization",
                            fmt::format("a boolean is the old form of stage {}", c.zero_stage),
                            fmt::format("write {{\"stage\": {}}}", c.zero_stage));
  return true;
}

void ReadStage3(SectionReader& in, ZeroConfig& c, int64_t hidden) {
  const bool three = c.zero_stage == 3;
  if (three && in.IsAuto("stage3_prefetch_bucket_size") && hidden > 0) {
    ReadSize(in, "stage3_prefetch_bucket_size", c.stage3_prefetch_bucket_size, hidden * hidden * 9 / 10,
             "0.9 x hidden_size^2, rounded down");
  } else {
    ReadAlias(in, "stage3_prefetch_bucket_size", c.stage3_prefetch_bucket_size, AtLeast(0));
  }
  if (three && in.IsAuto("stage3_param_persistence_threshold") && hidden > 0) {
    ReadSize(in, "stage3_param_persistence_threshold", c.stage3_param_persistence_threshold, 10 * hidden,
             "10 x hidden_size");
  } else {
    ReadAlias(in, "stage3_param_persistence_threshold", c.stage3_param_persistence_threshold, AtLeast(0));
  }
  ReadAlias(in, "stage3_model_persistence_threshold", c.stage3_model_persistence_threshold, AtLeast(0));
  ReadAlias(in, "stage3_max_live_parameters", c.stage3_max_live_parameters, AtLeast(0));
  ReadAlias(in, "stage3_max_reuse_distance", c.stage3_max_reuse_distance, AtLeast(0));
  const char* old_name = "stage3_gather_fp16_weights_on_model_save";
  if (in.Has(old_name)) {
    if (in.Has("stage3_gather_16bit_weights_on_model_save")) {
      in.diagnostics().Error("CFG011", in.At(old_name), in.Path(old_name),
                             "its new name stage3_gather_16bit_weights_on_model_save is set too",
                             "keep stage3_gather_16bit_weights_on_model_save only");
      in.Take("stage3_gather_16bit_weights_on_model_save");
    }
    in.Read(old_name, c.stage3_gather_16bit_weights_on_model_save);
    in.diagnostics().Notice("CFG011", in.At(old_name), in.Path(old_name), "an old name",
                            "write stage3_gather_16bit_weights_on_model_save");
  } else {
    in.Know(old_name);
    ReadAlias(in, "stage3_gather_16bit_weights_on_model_save", c.stage3_gather_16bit_weights_on_model_save);
  }
}

}  // namespace

ZeroConfig ParseZero(SectionReader& root, int64_t hidden_size) {
  ZeroConfig c;
  if (ReadLegacy(root, c)) return c;
  SectionReader in = root.Section("zero_optimization", SectionKind::kChecked);
  in.Read("stage", c.zero_stage, Between(0, 3));
  ReadSize(in, "reduce_bucket_size", c.reduce_bucket_size, hidden_size * hidden_size, "hidden_size^2");
  const bool written = in.Read("allgather_bucket_size", c.allgather_bucket_size, AtLeast(0));
  if (written && (c.zero_stage == 1 || c.zero_stage == 2) && c.allgather_bucket_size % 2 != 0) {
    in.diagnostics().Error("CFG006", in.At("allgather_bucket_size"), in.Path("allgather_bucket_size"),
                           fmt::format("{} is odd: stages 1 and 2 need an even number", c.allgather_bucket_size),
                           fmt::format("write {}", c.allgather_bucket_size + 1));
  }
  std::optional<bool> overlap;
  if (in.IsAuto("overlap_comm")) {
    in.Take("overlap_comm");
  } else {
    in.ReadOptional("overlap_comm", overlap);
  }
  c.overlap_comm = overlap.value_or(c.zero_stage == 3);
  if (!overlap) in.Record("overlap_comm", ToText(c.overlap_comm), "default: true at stage 3 only");
  in.Read("reduce_scatter", c.reduce_scatter);
  in.Read("contiguous_gradients", c.contiguous_gradients);
  in.Read("round_robin_gradients", c.round_robin_gradients);
  in.Read("load_from_fp32_weights", c.load_from_fp32_weights);
  in.Read("sub_group_size", c.sub_group_size, AtLeast(0));
  ReadStage3(in, c, hidden_size);
  ReadOffload(in, c);
  in.RejectUnread(kKnown);
  return c;
}

}  // namespace trireme
