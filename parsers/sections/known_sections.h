// Sections of DeepSpeed that this program does not act on, as tables: their keys, defaults and types. What is off
// passes; what is on is named (reports, tuning) or refused (what changes the training). Facts: DeepSpeed 0.19,
// runtime/config.py and the config classes of its features.
#pragma once
#include <span>
#include <string_view>

#include "parsers/section_reader.h"

namespace trireme::known {

constexpr KnownKey Member(std::string_view key, std::string_view default_value, std::string_view choices = {}) {
  return {.key = key, .treatment = kNoEffect, .default_value = default_value, .why = "", .choices = choices};
}

constexpr KnownKey Required(std::string_view key, std::string_view default_value) {
  return {.key = key, .treatment = kNoEffect, .default_value = default_value, .why = "", .required = true};
}

constexpr KnownKey Section(std::string_view key, KnownKey::Treatment treatment, std::string_view why,
                           std::span<const KnownKey> members, SectionKind kind = SectionKind::kLoose,
                           bool nullable = false) {
  return {.key = key,
          .treatment = treatment,
          .default_value = "",
          .why = why,
          .kind = kind,
          .members = members,
          .nullable = nullable};
}

// Reports.
inline constexpr KnownKey kThroughput[] = {Member("enabled", "true"), Member("synchronized", "true")};
inline constexpr KnownKey kTimers[] = {Section("throughput", kNoEffect, "", kThroughput, SectionKind::kChecked)};
inline constexpr KnownKey kCommsLogger[] = {
    Member("enabled", "false"), Member("prof_all", "true"), Member("prof_ops", ""),
    Member("verbose", "false"), Member("debug", "false"),
};
inline constexpr KnownKey kFlopsProfiler[] = {
    Member("enabled", "false"),  Member("recompute_fwd_factor", "0.0"),
    Member("profile_step", "1"), Member("module_depth", "-1"),
    Member("top_modules", "1"),  Member("detailed", "true"),
    Member("output_file", ""),
};
inline constexpr KnownKey kTensorboard[] = {Member("enabled", "false"), Member("output_path", "''"),
                                            Member("job_name", "DeepSpeedJobName")};
inline constexpr KnownKey kWandb[] = {Member("enabled", "false"), Member("group", ""), Member("team", ""),
                                      Member("project", "deepspeed")};
inline constexpr KnownKey kComet[] = {
    Member("enabled", "false"),   Member("samples_log_interval", "100"),
    Member("project", ""),        Member("workspace", ""),
    Member("api_key", ""),        Member("experiment_name", ""),
    Member("experiment_key", ""), Member("online", ""),
    Member("mode", ""),
};

// Checkpoints.
inline constexpr std::string_view kFormats = "checkpoints are native, written atomically, and load into any layout";
inline constexpr KnownKey kParallelWrite[] = {Member("pipeline_stage", "false")};
inline constexpr KnownKey kWriter[] = {
    Member("type", "fast", "mock|python|fast"),
    Member("io_buffer_size", "67108864"),
    Member("io_buffer_double", "true"),
    Member("show_statistics", "false"),
    Member("data_parallel", "", "replica|socket|machine"),
    Member("decoupled", "false"),
    Member("io_multiplier", "1"),
};
inline constexpr KnownKey kCheckpoint[] = {
    {"tag_validation", kNoEffect, "warn", "all ranks of a run write into one folder, whose name rank 0 gives",
     "warn|ignore|fail"},
    {"load_universal", kRefused, "false",
     "set it to false: DeepSpeed's universal checkpoints are not read; --load takes native ones, of any layout"},
    {"use_node_local_storage", kNoEffect, "false", "--save and --load name a folder that all machines see"},
    Section("parallel_write", kNoEffect, kFormats, kParallelWrite),
    {"checkpoint_serialization", kNoEffect, "true", kFormats},
    Section("writer", kNoEffect, kFormats, kWriter, SectionKind::kLoose, /*nullable=*/true),
};
inline constexpr KnownKey kNebula[] = {
    Member("enabled", "false"),
    Member("persistent_storage_path", ""),
    Member("persistent_time_interval", "100"),
    Member("num_of_version_in_retention", "2"),
    Member("enable_nebula_load", "true"),
    Member("nebula_load_path", ""),
};

// Speed.
inline constexpr std::string_view kOldCompile = "DeepSpeed refuses this member since 0.17; nothing is compiled here";
inline constexpr KnownKey kCompile[] = {
    {"enabled", kNoEffect, "", kOldCompile},
    {"disable", kNoEffect, "", kOldCompile},
    {"backend", kNoEffect, "", kOldCompile},
    {"kwargs", kNoEffect, "", kOldCompile},
    Member("deepcompile", "false"),
    Member("autoep_non_moe", "false"),
    Member("free_activation", "false"),
    Member("free_activation_threshold", "10485760"),
    Member("offload_activation", "false"),
    Member("offload_activation_pin_memory", "true"),
    Member("offload_opt_states", "false"),
    Member("double_buffer", "true"),
    Member("symmetric_memory", "false"),
    Member("debug_log", "false"),
    Member("offload_parameters", "false"),
    Member("sync_before_reduce", "false"),
    Member("sync_after_reduce", "false"),
    Member("sync_before_allgather", "false"),
    Member("sync_after_allgather", "false"),
    Member("keep_int_input_tensors", "true"),
    Member("keep_all_input_tensors", "false"),
    Member("passes", ""),
};
inline constexpr KnownKey kHybridEngine[] = {
    Member("enabled", "false"),
    Member("max_out_tokens", "512"),
    Member("inference_tp_size", "1"),
    Member("pin_parameters", "true"),
    Member("release_inference_cache", "false"),
    Member("tp_gather_partition_size", "8"),
    Member("enable_cuda_graph", "false"),
};
inline constexpr KnownKey kAutotuning[] = {
    Member("enabled", "false"),
    Member("fast", "true"),
    Member("results_dir", "autotuning_results"),
    Member("exps_dir", "autotuning_exps"),
    Member("overwrite", "true"),
    Member("start_profile_step", "3"),
    Member("end_profile_step", "5"),
    Member("metric", "throughput"),
    Member("metric_path", ""),
    Member("tuner_type", "gridsearch", "gridsearch|random|model_based"),
    Member("tuner_early_stopping", "5"),
    Member("tuner_num_trials", "50"),
    Member("arg_mappings", ""),
    Member("model_info", ""),
    Member("model_info_path", ""),
    Member("mp_size", "1"),
    Member("max_train_batch_size", ""),
    Member("min_train_batch_size", "1"),
    Member("max_train_micro_batch_size_per_gpu", "1024"),
    Member("min_train_micro_batch_size_per_gpu", "1"),
    Member("num_tuning_micro_batch_sizes", "3"),
};

// What changes the training.
inline constexpr KnownKey kAmp[] = {Required("enabled", "false")};  // every other key goes to Apex
inline constexpr KnownKey kAutocast[] = {
    Member("enabled", "false"),
    Member("dtype", "",
           "bf16|bfloat16|torch.bfloat16|fp16|float16|half|torch.float16|fp32|float32|float|torch.float32"),
    Member("lower_precision_safe_modules", ""),
};
inline constexpr KnownKey kExperts[] = {
    Member("enabled", "false"),
    Member("autoep_size", "1"),
    Member("async_split_plan", "false"),
    Member("expert_tensor_parallel_size", "1"),
    Member("validate_folding_routing", "false"),
    Member("preset_model", "", "mixtral|qwen3_moe|qwen3_5_moe|deepseek_v2|deepseek_v3"),
    Member("moe_layer_pattern", ""),
    Member("expert_pattern", ""),
    Member("router_pattern", ""),
    Member("use_grouped_mm", "true"),
    Member("disable_triton_grouped_mm", "false"),
    Member("route_norm", ""),
    Member("route_scale", "1.0"),
    Member("score_apply", "auto", "auto|pre|post"),
    Member("combine_impl", "auto", "auto|weighted_sum|fused_weighted_sum|legacy_bmm"),
    Member("row_weighting_impl", "auto", "auto|eager|fused"),
    Member("gate_up_impl", "separate", "separate|fused"),
    Member("comm_backend", "comm", "comm|deepep"),
    Member("comm_num_sm", "12"),
    Member("comm_qp_margin", "4"),
    Member("comm_max_tokens_per_rank", "0"),
    Member("expert_activation", ""),
    Member("score_func", "auto", "auto|softmax|sigmoid"),
    Member("num_expert_groups", ""),
    Member("num_limited_groups", ""),
    Member("top_k", ""),
    Member("load_balance_coeff", ""),
    Member("routed_scaling_factor", ""),
    Member("expert_w1", ""),
    Member("expert_w2", ""),
    Member("expert_w3", ""),
    Member("num_experts_attr", ""),
    Member("top_k_attr", ""),
    Member("has_shared_experts", ""),
    Member("shared_experts_pattern", ""),
    Member("shared_experts_gate_pattern", ""),
};
inline constexpr KnownKey kQuantizeTraining[] = {
    Member("enabled", "false"),
    Member("quantize_bits", ""),
    Member("quantize_schedule", ""),
    Member("quantize_groups", "1"),
    Member("quantize_type", ""),
    Member("quantize_verbose", "false"),
    Member("quantizer_kernel", "false"),
    Member("quantize_algo", ""),
    Member("fp16_mixed_quantize", ""),
    Member("quantize_eigenvalue", "false"),
    Member("eigenvalue", ""),
};
inline constexpr KnownKey kEigenvalue[] = {
    Member("enabled", "false"),
    Member("verbose", "false"),
    Member("max_iter", "100"),
    Member("tol", "0.01"),
    Member("stability", "0.000001"),
    Member("gas_boundary_resolution", "1"),
    Member("layer_name", "bert.encoder.layer"),
    Member("layer_num", "0"),
};
inline constexpr KnownKey kWeightQuantization[] = {
    Member("enabled", "true"),
    Member("num_bits", "8"),
    Member("q_type", "symmetric", "symmetric|asymmetric"),
    Member("q_groups", "1"),
    Member("quantized_initialization", ""),
    Member("post_init_quant", ""),
};
inline constexpr KnownKey kLayerDrop[] = {Required("enabled", "false"), Member("theta", "0.5"),
                                          Member("gamma", "0.001")};
inline constexpr KnownKey kCurriculum[] = {
    Required("enabled", "false"),  Member("curriculum_type", ""), Member("min_difficulty", "0"),
    Member("max_difficulty", "0"), Member("schedule_type", ""),   Member("schedule_config", ""),
};
inline constexpr KnownKey kCompression[] = {
    Member("layer_reduction", ""), Member("weight_quantization", ""), Member("activation_quantization", ""),
    Member("sparse_pruning", ""),  Member("row_pruning", ""),         Member("head_pruning", ""),
    Member("channel_pruning", ""),
};

}  // namespace trireme::known
