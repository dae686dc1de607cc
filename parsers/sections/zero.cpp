// "zero_optimization". Bucket and threshold keys count elements. Facts: DeepSpeed 0.19, runtime/zero/config.py.
#include <fmt/core.h>

#include <vector>

#include "parsers/sections/sections.h"

namespace trireme {
namespace {

constexpr const char* kTunes = "it tunes a mechanism that this program does not have; the result is the same";
constexpr const char* kLossy = "set it to false: lossy communication is not supported";
constexpr const char* kOverlaps = "reductions hide behind the backward pass either way";
constexpr const char* kGroups = "shards go over all data-parallel ranks; the result is the same";

// Strings, or lists of them.
constexpr KnownKey kLeafModule[] = {
    {"classes", kNoEffect, "", ""},
    {"names", kNoEffect, "", ""},
    {"name_suffixes", kNoEffect, "", ""},
};
constexpr KnownKey kLoco[] = {
    {"err_beta", kNoEffect, "0.8", ""},
    {"reset_T", kNoEffect, "1024", ""},
};
constexpr KnownKey kZenflow[] = {
    {"topk_ratio", kNoEffect, "0.1", ""},
    {"select_strategy", kNoEffect, "auto", "", "auto|step|epoch"},
    {"select_interval", kNoEffect, "", ""},
    {"update_interval", kNoEffect, "", ""},
    {"overlap_step", kNoEffect, "false", ""},
    {"offload", kNoEffect, "false", ""},
    {"auto_ratio", kNoEffect, "0.99", ""},
    {"full_warm_up_rounds", kNoEffect, "0", ""},
    {"pt_reserved_cores_perc", kNoEffect, "0.5", ""},
    {"steps_per_epoch", kNoEffect, "", ""},
};

constexpr KnownKey kKnown[] = {
    {.key = "overlap_comm", .treatment = kNoEffect, .default_value = "true", .why = kOverlaps, .nullable = true},
    {"reduce_scatter", kNoEffect, "true", "the sums are the same"},
    {"contiguous_gradients", kNoEffect, "true", "gradients always lie in flat buffers"},
    {"round_robin_gradients", kNoEffect, "false", kTunes},
    {"load_from_fp32_weights", kNoEffect, "true", "checkpoints hold the master weights, and they are loaded"},
    {"sub_group_size", kNoEffect, "1000000000", kTunes},
    {"use_multi_rank_bucket_allreduce", kNoEffect, "true", kTunes},
    {"allgather_partitions", kNoEffect, "true", kTunes},
    {"elastic_checkpoint", kNoEffect, "false", "every checkpoint loads into any layout"},
    {"ignore_unused_parameters", kNoEffect, "true", "a GPT uses all its parameters"},
    {"legacy_stage1", kRefused, "false", "set it to false: DeepSpeed has removed it too"},
    {"zero_hpz_partition_size", kNoEffect, "1", kGroups},
    {"zero_quantized_weights", kRefused, "false", kLossy},
    {"zero_quantized_nontrainable_weights", kRefused, "false", kLossy},
    {"zero_quantized_gradients", kRefused, "false", kLossy},
    {.key = "zeropp_loco_param",
     .treatment = kNoEffect,
     .default_value = "",
     .why = "it belongs to quantised gradients, which are off",
     .members = kLoco,
     .nullable = true},
    {"mics_shard_size", kNoEffect, "-1", kGroups},
    {"mics_hierarchical_params_gather", kNoEffect, "false", kGroups},
    {"memory_efficient_linear", kNoEffect, "true", kTunes},
    {"pipeline_loading_checkpoint", kNoEffect, "false", kTunes},
    {"override_module_apply", kNoEffect, "true", kTunes},
    {"log_trace_cache_warnings", kNoEffect, "false", kTunes},
    {"enable_sanity_checks", kNoEffect, "false", kTunes},
    {"compute_grad_norm", kNoEffect, "true",
     "the norm is always made: the check for values that are not finite needs it"},
    {"parameter_alignment", kNoEffect, "false", kTunes},
    {"save_muon_momentum_buffer_in_memory", kNoEffect, "false", kTunes},
    {.key = "leaf_module",
     .treatment = kNoEffect,
     .default_value = "",
     .why = kTunes,
     .kind = SectionKind::kChecked,
     .members = kLeafModule,
     .nullable = true},
    {.key = "zenflow",
     .treatment = kRefused,
     .default_value = "",
     .why = "remove it: it updates only a part of the gradient each step",
     .kind = SectionKind::kChecked,
     .members = kZenflow,
     .nullable = true,
     .present_is_on = true},
    {"cpu_offload_use_pin_memory", kNoEffect, "false",
     "DeepSpeed ignores it too; the key is offload_optimizer.pin_memory"},
};

// Of stage 3. At the other stages templates carry them and DeepSpeed does not look at them, so nothing is said.
constexpr KnownKey kStage3[] = {
    {.key = "stage3_param_persistence_threshold",
     .treatment = kNoEffect,
     .default_value = "100000",
     .why = kTunes,
     .short_name = "param_persistence_threshold"},
    {.key = "stage3_model_persistence_threshold",
     .treatment = kNoEffect,
     .default_value = "9223372036854775807",
     .why = kTunes,
     .short_name = "model_persistence_threshold"},
    {.key = "stage3_max_live_parameters",
     .treatment = kNoEffect,
     .default_value = "1000000000",
     .why = kTunes,
     .short_name = "max_live_parameters"},
    {.key = "stage3_max_reuse_distance",
     .treatment = kNoEffect,
     .default_value = "1000000000",
     .why = kTunes,
     .short_name = "max_reuse_distance"},
    {.key = "stage3_gather_16bit_weights_on_model_save",
     .treatment = kNoEffect,
     .default_value = "false",
     .why = "--save-hf DIR writes the whole model in 16 bits",
     .short_name = "gather_16bit_weights_on_model_save"},
    {.key = "stage3_module_granularity_threshold",
     .treatment = kNoEffect,
     .default_value = "0",
     .why = kTunes,
     .short_name = "module_granularity_threshold"},
    {.key = "stage3_use_all_reduce_for_fetch_params",
     .treatment = kNoEffect,
     .default_value = "false",
     .why = kTunes,
     .short_name = "use_all_reduce_for_fetch_params"},
    {.key = "stage3_allgather_sequential",
     .treatment = kNoEffect,
     .default_value = "false",
     .why = kTunes,
     .short_name = "allgather_sequential"},
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

// The fp16 of its name became 16bit.
void MapOldGather(SectionReader& in) {
  const char* old_name = "stage3_gather_fp16_weights_on_model_save";
  const char* new_name = "stage3_gather_16bit_weights_on_model_save";
  bool gather = false;
  if (!in.Has(old_name)) return in.Know(old_name);
  in.Read(old_name, gather);
  if (in.Has(new_name)) {
    in.diagnostics().Error("CFG011", in.At(old_name), in.Path(old_name),
                           fmt::format("its new name {} is set too", new_name), fmt::format("keep {} only", new_name));
  } else {
    in.diagnostics().Notice("CFG011", in.At(old_name), in.Path(old_name),
                            "an old name, without effect here: --save-hf DIR writes the whole model in 16 bits",
                            fmt::format("write {}", new_name));
  }
}

void ReadPrefetch(SectionReader& in, ZeroConfig& c, int64_t hidden) {
  const char* key = "stage3_prefetch_bucket_size";
  if (c.zero_stage == 3 && in.IsAuto(key) && hidden > 0) {
    ReadSize(in, key, c.stage3_prefetch_bucket_size, hidden * hidden * 9 / 10, "0.9 x hidden_size^2, rounded down");
  } else {
    ReadAlias(in, key, c.stage3_prefetch_bucket_size, AtLeast(0));
  }
}

std::vector<KnownKey> KnownAt(int stage) {
  std::vector<KnownKey> known(std::begin(kKnown), std::end(kKnown));
  for (KnownKey key : kStage3) {
    if (stage < 3) key.why = "";
    known.push_back(key);
  }
  return known;
}

}  // namespace

ZeroConfig ParseZero(SectionReader& root, int64_t hidden_size) {
  ZeroConfig c;
  if (ReadLegacy(root, c)) return c;
  SectionReader in = root.Section("zero_optimization", SectionKind::kChecked);
  in.Read("stage", c.zero_stage, Between(0, 3));
  if (in.IsAuto("stage")) {
    in.diagnostics().Notice("CFG015", in.At("stage"), in.Path("stage"), "\"auto\" is 0, as in DeepSpeed alone",
                            "write the stage");
  }
  ReadSize(in, "reduce_bucket_size", c.reduce_bucket_size, hidden_size * hidden_size, "hidden_size^2");
  const bool written = in.Read("allgather_bucket_size", c.allgather_bucket_size, AtLeast(0));
  if (written && (c.zero_stage == 1 || c.zero_stage == 2) && c.allgather_bucket_size % 2 != 0) {
    in.diagnostics().Error("CFG006", in.At("allgather_bucket_size"), in.Path("allgather_bucket_size"),
                           fmt::format("{} is odd: stages 1 and 2 need an even number", c.allgather_bucket_size),
                           fmt::format("write {}", c.allgather_bucket_size + 1));
  }
  ReadPrefetch(in, c, hidden_size);
  MapOldGather(in);
  ReadOffload(in, c);
  in.RejectUnread(KnownAt(c.zero_stage));
  return c;
}

}  // namespace trireme
