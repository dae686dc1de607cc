// The sections put together, then the rules between them: one function a rule.
#include "parsers/config.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/base/strings.h"
#include "parsers/batch_triangle.h"
#include "parsers/cli.h"
#include "parsers/config_source.h"
#include "parsers/json_tree.h"
#include "parsers/layout_text.h"
#include "parsers/section_reader.h"
#include "parsers/sections/sections.h"
#include "parsers/text_values.h"

namespace trireme {
namespace {

std::string SourceOf(const Config& config, std::string_view key) {
  const auto it = std::ranges::find(config.origins, key, &Origin::key);
  return it == config.origins.end() ? "" : it->source;
}

// The sizes of the rank grid, of which sequence parallelism is refused, but counts until then.
struct Grid {
  int64_t tp = 1, pp = 1, sp = 1;
  int64_t model_parallel() const { return tp * pp * sp; }
  std::string Text() const { return fmt::format("tp {} x pp {}{}", tp, pp, sp > 1 ? fmt::format(" x sp {}", sp) : ""); }
};

// For messages that begin with the file's name: "line 3", "--lr".
std::string ShortSourceOf(const Config& config, std::string_view key, const std::string& file) {
  const std::string source = SourceOf(config, key);
  return source.starts_with(file + ":") ? "line " + source.substr(file.size() + 1) : source;
}

// Ranks = dp x tp x pp. False if that has no whole solution.
bool CheckWorld(SectionReader& root, const Grid& grid, Config& config) {
  const int64_t model_parallel = grid.model_parallel();
  const bool by_stages = grid.pp > 1 && config.world_size % grid.tp == 0;
  if (config.world_size < 1 || config.world_size % model_parallel != 0) {
    root.diagnostics().Error(
        "CFG023", root.Here(),
        grid.sp > 1 ? "sequence_parallel_size"
        : by_stages ? "pipeline_parallel.pp_size"
                    : "tensor_parallel.tp_size",
        fmt::format("{} cannot be cut into {} = {}", Counted(config.world_size, "rank"), grid.Text(), model_parallel),
        fmt::format("run {} ranks, or change {}",
                    std::max<int64_t>(1, config.world_size / model_parallel + 1) * model_parallel,
                    grid.sp > 1 ? "one of the sizes" : "tp_size or pp_size"));
    return false;
  }
  config.dp_size = config.world_size / model_parallel;
  root.Record("data_parallel_size", ToText(config.dp_size), "derived: ranks / (tp x pp)");
  if (!root.Has("data_parallel_size")) {
    root.Know("data_parallel_size", KeyRecord::Type::kInteger, AtLeast(1));
    return true;
  }
  int64_t written = 0;
  if (root.Read("data_parallel_size", written, AtLeast(1)) && written != config.dp_size) {
    root.diagnostics().Error(
        "CFG024", root.At("data_parallel_size"), "data_parallel_size",
        fmt::format("{} here, but {} ranks / ({}) = {}", written, config.world_size, grid.Text(), config.dp_size),
        "remove the key, or change the number of ranks");
  }
  return true;
}

// What of the grid stands in the file: DeepSpeed reads some of these keys otherwise, or not at all.
void TellGrid(SectionReader& root, const Config& config) {
  for (const char* key : {"tensor_parallel.tp_size", "pipeline_parallel.pp_size"}) {
    const std::string source = SourceOf(config, key);
    const int64_t size = key[0] == 't' ? config.tensor_parallel.tp_size : config.pipeline_parallel.pp_size;
    if (size == 1 || !source.starts_with(kKeySource)) continue;
    const std::string written = source.substr(kKeySource.size());
    root.diagnostics().Notice(
        "CFG025", root.At(written.substr(0, written.find('.'))), written,
        fmt::format("{} / (tp {} x pp {}) = {}, which the batch counts{}", Counted(config.world_size, "rank"),
                    config.tensor_parallel.tp_size, config.pipeline_parallel.pp_size,
                    Counted(config.dp_size, "replica"),
                    written == "tensor_parallel.autotp_size" ? "; DeepSpeed counts every rank"
                    : written == "tensor_parallel.tp_size"   ? "; DeepSpeed refuses this key"
                    : key[0] == 'p' ? "; DeepSpeed takes the stages from the program, not from here"
                                    : ""));
  }
}

void ResolveTriangle(SectionReader& root, const WrittenBatch& written, const Grid& grid, Config& config) {
  if (written.wrong) return;
  const std::string file = root.Here().file;
  BatchInput in{written.train_batch_size,
                written.train_micro_batch_size_per_gpu,
                written.gradient_accumulation_steps,
                ShortSourceOf(config, "train_batch_size", file),
                ShortSourceOf(config, "train_micro_batch_size_per_gpu", file),
                ShortSourceOf(config, "gradient_accumulation_steps", file),
                config.world_size,
                grid.tp,
                grid.pp,
                grid.sp,
                SourceOf(config, "tensor_parallel.tp_size") == std::string(kKeySource) + "tensor_parallel.autotp_size"};
  const BatchResult result = ResolveBatch(in);
  if (!result.batch) {
    root.diagnostics().Error(result.id, root.At(result.key), result.key, result.what, result.fix);
    return;
  }
  config.batch = *result.batch;
  const auto derived = [&](const char* key, bool was_written, int64_t value) {
    if (!was_written) root.Record(key, ToText(value), "derived: batch = micro x accumulation x dp");
  };
  derived("train_batch_size", written.train_batch_size.has_value(), config.batch.train_batch_size);
  derived("train_micro_batch_size_per_gpu", written.train_micro_batch_size_per_gpu.has_value(),
          config.batch.train_micro_batch_size_per_gpu);
  derived("gradient_accumulation_steps", written.gradient_accumulation_steps.has_value(),
          config.batch.gradient_accumulation_steps);
}

// With elasticity on, the three numbers follow from it, and what is written of them is a contradiction.
void ResolveElasticBatch(SectionReader& root, const ElasticityConfig& elasticity, const WrittenBatch& written,
                         Config& config) {
  const bool any =
      written.train_batch_size || written.train_micro_batch_size_per_gpu || written.gradient_accumulation_steps;
  if (any && !elasticity.ignore_non_elastic_batch_info) {
    root.diagnostics().Error("CFG027", root.At("elasticity"), "elasticity",
                             "elasticity chooses the batch numbers, and some of them are given too",
                             "remove them, set elasticity.enabled to false, or set ignore_non_elastic_batch_info");
    return;
  }
  const ElasticResult result = ResolveElastic(elasticity, config.dp_size);
  if (!result.batch) {
    root.diagnostics().Error("CFG027", root.At("elasticity"), "elasticity", result.what, result.fix);
    return;
  }
  config.batch = *result.batch;
  const std::string source = "derived: elasticity";
  root.Record("train_batch_size", ToText(config.batch.train_batch_size), source);
  root.Record("train_micro_batch_size_per_gpu", ToText(config.batch.train_micro_batch_size_per_gpu), source);
  root.Record("gradient_accumulation_steps", ToText(config.batch.gradient_accumulation_steps), source);
  if (any) {
    root.diagnostics().Warning("CFG027", root.At("elasticity"), "elasticity",
                               fmt::format("the batch numbers given are replaced: batch {}, micro {}, accumulation {}",
                                           config.batch.train_batch_size, config.batch.train_micro_batch_size_per_gpu,
                                           config.batch.gradient_accumulation_steps),
                               "remove them from the file and the command line");
  }
}

void CheckOnePrecision(SectionReader& root, const Config& config) {
  if (config.fp16.enabled && config.bf16.enabled) {
    root.diagnostics().Error("CFG030", root.At("fp16"), "fp16.enabled",
                             fmt::format("fp16.enabled ({}) and bf16.enabled ({}) are both true",
                                         ShortSourceOf(config, "fp16.enabled", root.Here().file),
                                         ShortSourceOf(config, "bf16.enabled", root.Here().file)),
                             "switch one of them off; bf16 needs no loss scale");
  }
  if (config.fp64 && (config.fp16.enabled || config.bf16.enabled)) {
    root.diagnostics().Error("CFG030", {}, "--fp64",
                             fmt::format("--fp64 and {}.enabled are both on", config.bf16.enabled ? "bf16" : "fp16"),
                             "remove --fp64, or switch the other off");
  }
}

// What the kernels have: gradients add up in fp32 or in the type of the weights (under --fp64 in fp64, whatever the
// file says).
void CheckGradientTypes(SectionReader& root, const Config& config) {
  if (!config.data_types.grad_accum_dtype) return;
  const DType accumulate = *config.data_types.grad_accum_dtype, compute = ComputeDType(config);
  if (accumulate == DType::kFloat32 || accumulate == compute || config.fp64) return;
  root.diagnostics().Error("CFG031", root.At("data_types"), "data_types.grad_accum_dtype",
                           fmt::format("{} is no type in which gradients of {} weights add up: their sum would lose "
                                       "bits that each of them has",
                                       Name(accumulate), Name(compute)),
                           fmt::format("write fp32, or set {}.enabled to true", Name(accumulate)));
}

// It can only say once more what fp16.enabled and bf16.enabled say.
void CheckParamType(SectionReader& root, const Config& config) {
  const JsonValue* types = root.Find("data_types");
  const JsonMember* member = types == nullptr ? nullptr : types->Find("param_dtype");
  if (member == nullptr || member->value.kind == JsonValue::Kind::kNull) return;
  const bool text = member->value.kind == JsonValue::Kind::kText;
  const std::optional<DType> written = text ? DTypeFromText(member->value.text) : std::nullopt;
  if (config.fp64 || written == ComputeDType(config)) return;
  root.diagnostics().Error(
      "CFG031", PositionIn(root.Here().file, *member), "data_types.param_dtype",
      fmt::format("{} here, but the weights are {}", Describe(member->value), Name(ComputeDType(config))),
      written == DType::kBFloat16 || written == DType::kFloat16
          ? fmt::format("set {}.enabled to true, or remove the key", Name(*written))
          : "remove the key: fp16.enabled and bf16.enabled decide");
}

// 16-bit weights without a word on accumulation: DeepSpeed adds up in their type, this program in fp32.
void TellAccumulation(SectionReader& root, const Config& config) {
  const DType compute = ComputeDType(config);
  if (SizeOf(compute) != 2 || config.data_types.grad_accum_dtype || config.trireme.deepspeed_accumulation) return;
  root.diagnostics().Notice(
      "CFG053", root.At(std::string(Name(compute))), "data_types.grad_accum_dtype",
      fmt::format("absent: gradients add up and are reduced in fp32, where DeepSpeed takes {}", Name(compute)),
      "write \"trireme\": {\"deepspeed_accumulation\": true} for DeepSpeed's curve");
}

// Where reductions scatter, DeepSpeed's stages 2 and 3 average in one way only, and it stops at these keys.
void CheckPrescale(SectionReader& root, const Config& config) {
  const JsonValue* zero = root.Find("zero_optimization");
  const JsonMember* scatter = zero == nullptr ? nullptr : zero->Find("reduce_scatter");
  const bool scatters = scatter == nullptr || scatter->value.kind != JsonValue::Kind::kBool || scatter->value.boolean;
  if (config.zero_optimization.zero_stage < 2 || !scatters) return;
  const JsonValue* prescale = root.Find("prescale_gradients");
  const JsonValue* factor = root.Find("gradient_predivide_factor");
  const auto refuse = [&](const char* key, const std::string& value) {
    root.diagnostics().Error("CFG038", root.At(key), key,
                             fmt::format("{} at ZeRO stage {}: DeepSpeed stops at this, unless reduce_scatter is false",
                                         value, config.zero_optimization.zero_stage),
                             "remove the key: gradients are averaged either way");
  };
  if (prescale != nullptr && prescale->boolean) refuse("prescale_gradients", "true");
  if (factor != nullptr && factor->kind != JsonValue::Kind::kText && factor->number != 1 && factor->number != 0) {
    refuse("gradient_predivide_factor", ToText(factor->number));
  }
}

// Between the halves of Lamb's update norms travel between the devices.
void RefuseLambOnTheHost(SectionReader& root, const Config& config) {
  const ZeroConfig& zero = config.zero_optimization;
  if (config.optimizer.type != OptimizerType::kLamb || zero.offload_optimizer.device == OffloadDevice::kNone) return;
  root.diagnostics().Error(
      "CFG058", root.At("zero_optimization"), "zero_optimization.offload_optimizer",
      "Lamb is not updated on the CPU: its step waits for norms of whole tensors, summed over the ranks",
      fmt::format(
          "remove offload_optimizer (ZeRO-{} divides Lamb's state over {} ranks), or use AdamW, Lion or Adagrad, "
          "which are updated on the CPU",
          zero.zero_stage, config.dp_size));
}

void TellPipelineCost(SectionReader& root, const Config& config) {
  if (config.pipeline_parallel.pp_size == 1 || config.zero_optimization.zero_stage < 2) return;
  root.diagnostics().Notice(
      "CFG052", root.At("zero_optimization"), "zero_optimization.stage",
      fmt::format("stage {} with pp {}: gradients are reduced for each of {} micro-batches; DeepSpeed refuses this",
                  config.zero_optimization.zero_stage, config.pipeline_parallel.pp_size,
                  config.batch.gradient_accumulation_steps),
      "stage 1 reduces once a step, at the price of whole gradients in memory");
}

// WarmupDecayLR without warmup_max_lr peaks at 1e-3, whatever the optimizer's lr is.
void TellPeakRate(SectionReader& root, const Config& config) {
  if (config.scheduler.type != SchedulerType::kWarmupDecayLR) return;
  if (SourceOf(config, "scheduler.params.warmup_max_lr") != "default") return;
  if (config.scheduler.warmup_max_lr == config.optimizer.lr) return;
  root.diagnostics().Warning("CFG042", root.At("scheduler"), "scheduler.params.warmup_max_lr",
                             fmt::format("absent: the rate peaks at {}, not at the optimizer's lr {}, as in DeepSpeed",
                                         config.scheduler.warmup_max_lr, config.optimizer.lr),
                             fmt::format("write \"warmup_max_lr\": {}", config.optimizer.lr));
}

// A pack of at most max_tokens is a micro-batch, and every token of a step weighs the same.
void CheckDynamicBatching(SectionReader& root, const Config& config) {
  if (!config.data_efficiency.dynamic_batching.enabled) return;
  const int64_t micro = config.batch.train_micro_batch_size_per_gpu;
  if (micro > 1) {
    root.diagnostics().Error(
        "CFG037", root.At("train_micro_batch_size_per_gpu"), "train_micro_batch_size_per_gpu",
        fmt::format("{} with dynamic batching, where max_tokens says how large a micro-batch is", micro),
        fmt::format("set it to 1; {} times the max_tokens is a micro-batch as large as DeepSpeed's", micro));
  }
}

void ReadSections(SectionReader& root, const TrainFlags& flags, int64_t hidden_size, Config& config) {
  const WrittenBatch batch = ParseBatch(root, flags);
  const int64_t sequence_parallel_size = ParseParallel(root, flags, config);
  config.optimizer = ParseOptimizer(root.Section("optimizer", SectionKind::kLoose), flags);
  config.scheduler = ParseScheduler(root.Section("scheduler", SectionKind::kLoose), flags, config.optimizer);
  config.fp16 = ParseFp16(root.Section("fp16", SectionKind::kChecked), flags);
  config.bf16 = ParseBf16(root, flags);
  config.data_types = ParseDataTypes(root.Section("data_types", SectionKind::kLoose));
  config.zero_optimization = ParseZero(root, hidden_size);
  config.aio = ParseAio(root.Section("aio", SectionKind::kLoose, /*null_is_absent=*/true));
  config.trireme = ParseTrireme(root.Section("trireme", SectionKind::kChecked), flags, config);
  ParseActivations(root, flags, config);
  config.data_efficiency = ParseDataEfficiency(root.Section("data_efficiency", SectionKind::kLoose));
  ParseTopLevel(root, flags, config);
  const Grid grid{config.tensor_parallel.tp_size, config.pipeline_parallel.pp_size, sequence_parallel_size};
  const int errors_before = root.diagnostics().num_errors();
  const ElasticityConfig elasticity = ParseElasticity(root.Section("elasticity", SectionKind::kLoose));
  const bool elastic = elasticity.enabled && root.diagnostics().num_errors() == errors_before;
  if (CheckWorld(root, grid, config)) {
    if (elastic) ResolveElasticBatch(root, elasticity, batch, config);
    if (!elasticity.enabled) ResolveTriangle(root, batch, grid, config);
    TellGrid(root, config);
  }
  CheckOnePrecision(root, config);
  CheckGradientTypes(root, config);
  CheckParamType(root, config);
  TellAccumulation(root, config);
  CheckPrescale(root, config);
  RefuseLambOnTheHost(root, config);
  CheckDynamicBatching(root, config);
  TellPipelineCost(root, config);
  TellPeakRate(root, config);
  CheckFeatures(root);
  TellNeoxKeys(root);
  root.RejectUnread(KnownTopLevelKeys());
}

// What --with set under `spelling`, another name of `key` perhaps. A rule may have found the value by way of its
// section, or of another key's name.
void TellWhoSet(std::string_view key, std::string_view spelling, ParseResult& result) {
  const Position set = PositionIn("", kSetByWith, 0);
  const auto row = std::ranges::find(result.config.origins, key, &Origin::key);
  if (row != result.config.origins.end() && row->source.starts_with(kKeySource)) {
    if (key != spelling && row->source.substr(kKeySource.size()) != spelling) return;  // a third name has said it
    row->source = set.file;
  }
  result.diagnostics.Relocate(key, set);
}

}  // namespace

DType ComputeDType(const Config& config) {
  if (config.fp64) return DType::kFloat64;
  if (config.bf16.enabled) return DType::kBFloat16;
  return config.fp16.enabled ? DType::kFloat16 : DType::kFloat32;
}

DType GradAccumDType(const Config& config) {
  if (config.fp64) return DType::kFloat64;
  if (config.data_types.grad_accum_dtype) return *config.data_types.grad_accum_dtype;
  return config.trireme.deepspeed_accumulation ? ComputeDType(config) : DType::kFloat32;
}

DType CommunicationDType(const Config& config) {
  if (config.fp64) return DType::kFloat64;
  if (config.communication_data_type) return *config.communication_data_type;
  return config.trireme.deepspeed_accumulation ? ComputeDType(config) : GradAccumDType(config);
}

std::string_view Name(OptimizerType type) {
  static constexpr std::string_view kNames[] = {"Adam", "AdamW", "SGD", "Adagrad", "Lion", "Lamb"};
  return kNames[static_cast<int>(type)];
}

std::string_view Name(SchedulerType type) {
  static constexpr std::string_view kNames[] = {"none",           "WarmupLR",    "WarmupDecayLR",
                                                "WarmupCosineLR", "LRRangeTest", "OneCycle"};
  return kNames[static_cast<int>(type)];
}

ParseResult ParseRecording(std::string_view text, const std::string& name, const TrainFlags& flags, int64_t world_size,
                           int64_t hidden_size, std::vector<KeyRecord>* records, std::span<const std::string> with) {
  ParseResult result;
  result.config.world_size = world_size;
  std::optional<JsonValue> json = ReadJson(text, name, result.diagnostics);
  if (json && json->kind != JsonValue::Kind::kObject) {
    result.diagnostics.Error("CFG005", {name, json->line, json->column}, "",
                             fmt::format("the file holds {}, and a config is an object", Describe(*json)),
                             "write { ... } around its keys");
  } else if (json) {
    SetKeys(*json, with);
    ReaderContext context{name, result.diagnostics, result.config.origins, records};
    SectionReader root(context, &*json, "", SectionKind::kLoose);
    ReadSections(root, flags, hidden_size, result.config);
  }
  for (const std::string& assignment : with) {
    const std::string key = assignment.substr(0, assignment.find('='));
    TellWhoSet(key, key, result);
  }
  if (json) {
    for (const OtherSpelling& other : OtherSpellingsSet(*json)) TellWhoSet(other.key, other.spelling, result);
  }
  if (flags.strict) result.diagnostics.WarningsAreErrors();
  result.diagnostics.SortByPosition();
  return result;
}

ParseResult ParseConfigText(std::string_view text, const std::string& name, const TrainFlags& flags, int64_t world_size,
                            int64_t hidden_size, std::span<const std::string> with) {
  return ParseRecording(text, name, flags, world_size, hidden_size, nullptr, with);
}

ParseResult ParseConfigFile(const std::filesystem::path& path, const TrainFlags& flags, int64_t world_size,
                            int64_t hidden_size) {
  Diagnostics unread;
  const std::optional<ConfigSource> source = ReadConfigSource(path.string(), unread);
  if (!source) return {{}, unread};
  return ParseConfigText(source->text, source->name, flags, world_size, hidden_size);
}

}  // namespace trireme
