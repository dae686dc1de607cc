// What becomes of activations: "trireme.recompute" and Megatron-LM's flags say whether they are made once more,
// "activation_checkpointing" and "pipeline.activation_checkpoint_interval" how (the last also whether).
#include <fmt/core.h>

#include <charconv>

#include "engine/base/strings.h"
#include "parsers/sections/sections.h"

namespace trireme {
namespace {

constexpr KnownKey kKnown[] = {
    {"contiguous_memory_optimization", kNoEffect, "false", "all of a step's activations lie in one piece of memory"},
    {"synchronize_checkpoint_boundary", kNoEffect, "false", "it tunes PyTorch, not the result"},
    {"profile", kNoEffect, "false", "--trace shows each recomputation"},
};

constexpr std::string_view kPolicies[] = {"keep", "cheap", "full"};

std::optional<Recompute> PolicyOf(std::string_view text) {
  for (size_t p = 0; p < std::size(kPolicies); ++p) {
    if (text == kPolicies[p]) return static_cast<Recompute>(p);
  }
  return std::nullopt;
}

// "full", "full:8": nullopt where it is neither.
std::optional<RecomputeRun> RunOf(std::string_view text) {
  const size_t colon = text.find(':');
  const std::optional<Recompute> policy = PolicyOf(text.substr(0, colon));
  if (!policy) return std::nullopt;
  RecomputeRun run{*policy, 0};
  if (colon == std::string_view::npos) return run;
  const std::string_view count = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), run.layers);
  if (error != std::errc() || end != count.data() + count.size() || run.layers < 1) return std::nullopt;
  return run;
}

// Runs without a count can only be the last. nullopt: the text says something else.
std::optional<std::vector<RecomputeRun>> RunsOf(const std::string& text) {
  std::vector<RecomputeRun> runs;
  for (const std::string& part : Split(text, ',')) {
    const std::optional<RecomputeRun> run = RunOf(part);
    if (!run || (!runs.empty() && runs.back().layers == 0)) return std::nullopt;
    runs.push_back(*run);
  }
  return runs;
}

// One policy a layer.
std::optional<std::vector<RecomputeRun>> RunsOf(const std::vector<JsonValue>& list) {
  std::vector<RecomputeRun> runs;
  for (const JsonValue& value : list) {
    const std::optional<Recompute> policy = value.kind == JsonValue::Kind::kText ? PolicyOf(value.text) : std::nullopt;
    if (!policy) return std::nullopt;
    if (runs.empty() || runs.back().policy != *policy) runs.push_back({*policy, 0});
    ++runs.back().layers;
  }
  return runs;
}

// What Megatron-LM's flags ask for; `length` is its layers of one checkpoint.
std::vector<RecomputeRun> RunsOf(const TrainFlags& flags, int64_t& length, bool& of_each_stage) {
  if (flags.recompute_granularity.empty()) return {};
  if (flags.recompute_granularity == "selective") return {{Recompute::kCheap, 0}};
  const int64_t layers = flags.recompute_num_layers.value_or(1);
  of_each_stage = flags.recompute_method == "block";
  if (of_each_stage) return {{Recompute::kFull, layers}};
  if (!flags.recompute_method.empty()) length = layers;
  return {{Recompute::kFull, 0}};
}

bool AnyFull(const RecomputeConfig& config) {
  for (const RecomputeRun& run : config.runs) {
    if (run.policy == Recompute::kFull) return true;
  }
  return false;
}

std::string TextOf(const RecomputeConfig& config) {
  std::string text;
  for (const RecomputeRun& run : config.runs) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", kPolicies[static_cast<size_t>(run.policy)]);
    if (run.layers > 0) text += fmt::format(":{}", run.layers);
  }
  if (config.of_each_stage) text += " of each stage";
  return text.empty() ? "keep" : text;
}

void JoinFlags(SectionReader& root, const TrainFlags& flags, RecomputeConfig& config) {
  int64_t length = 0;
  bool of_each_stage = false;
  const std::vector<RecomputeRun> wanted = RunsOf(flags, length, of_each_stage);
  if (wanted.empty()) return;
  if (!config.runs.empty() && (config.runs != wanted || of_each_stage)) {
    root.diagnostics().Error(
        "CFG008", root.At("trireme"), "trireme.recompute",
        fmt::format("the config says {}, but --recompute-granularity {}", TextOf(config), flags.recompute_granularity),
        "remove the flag, or the key");
  }
  if (length > 0 && config.layers_per_checkpoint > 0 && length != config.layers_per_checkpoint) {
    root.diagnostics().Error(
        "CFG008", root.At("pipeline"), "pipeline.activation_checkpoint_interval",
        fmt::format("the config says {}, but --recompute-num-layers says {}", config.layers_per_checkpoint, length),
        "remove the flag, or the key");
  }
  config.runs = wanted;
  config.of_each_stage = of_each_stage;
  if (length > 0) config.layers_per_checkpoint = length;
}

// What the section asks for and does not get.
void TellWithoutEffect(SectionReader& in, const Config& config) {
  const RecomputeConfig& c = config.recompute;
  const auto tell = [&](const char* key, const std::string& what, const std::string& fix) {
    in.diagnostics().Notice("CFG010", in.At(key), in.Path(key), what, fix);
  };
  if (!AnyFull(c)) {
    if (!c.partition_activations && !c.cpu_checkpointing && c.number_checkpoints == 0) return;
    in.diagnostics().Notice("CFG010", in.Here(), "activation_checkpointing",
                            "no effect here: the section says how, not whether, to recompute",
                            "--recompute-granularity full switches it on");
    return;
  }
  if (c.partition_activations && config.tensor_parallel.tp_size == 1) {
    tell("partition_activations", "no effect: there is one tensor-parallel rank", "");
  } else if (c.partition_activations && config.tensor_parallel.sequence_parallel) {
    tell("partition_activations", "no effect: sequence_parallel splits what is kept already", "");
  }
  if (c.number_checkpoints == 0) return;
  if (c.layers_per_checkpoint > 0) {
    tell("number_checkpoints", fmt::format("no effect: {} layers a checkpoint are asked for", c.layers_per_checkpoint),
         "");
  } else {
    in.diagnostics().Notice(
        "CFG056", in.At("number_checkpoints"), in.Path("number_checkpoints"),
        fmt::format("the inputs of {} runs of layers are kept, and a run is made once more as a whole; DeepSpeed only "
                    "sizes a buffer with it",
                    c.number_checkpoints),
        "remove it to keep the input of every layer");
  }
}

}  // namespace

void ParseRecompute(SectionReader& in, RecomputeConfig& config) {
  const JsonValue* value = in.Take("recompute");
  if (value == nullptr || value->kind == JsonValue::Kind::kNull) return;
  std::optional<std::vector<RecomputeRun>> runs;
  if (value->kind == JsonValue::Kind::kText) runs = RunsOf(value->text);
  if (value->kind == JsonValue::Kind::kArray) runs = RunsOf(value->elements);
  if (runs) {
    config.runs = std::move(*runs);
    return;
  }
  in.diagnostics().Error("CFG012", in.At("recompute"), in.Path("recompute"),
                         fmt::format("{} is no way to treat activations", Describe(*value)),
                         R"(write "keep", "cheap", "full", or runs of layers as in "full:8,cheap:4")");
}

void ParseActivations(SectionReader& root, const TrainFlags& flags, Config& config) {
  RecomputeConfig& c = config.recompute;
  SectionReader in = root.Section("activation_checkpointing", SectionKind::kLoose);
  in.Fill("partition_activations", c.partition_activations,
          flags.distribute_saved_activations ? std::optional<bool>(true) : std::nullopt,
          "--distribute-saved-activations");
  in.Read("cpu_checkpointing", c.cpu_checkpointing);
  std::optional<int64_t> number;
  if (in.ReadOptional("number_checkpoints", number, AtLeast(1))) c.number_checkpoints = *number;
  in.RejectUnread(kKnown);
  JoinFlags(root, flags, c);
  if (c.layers_per_checkpoint > 0 && !c.runs.empty() && (!AnyFull(c) || c.of_each_stage)) {
    root.diagnostics().Error(
        "CFG008", root.At("pipeline"), "pipeline.activation_checkpoint_interval",
        fmt::format("{} layers are recomputed together, but {} says {}", c.layers_per_checkpoint,
                    flags.recompute_granularity.empty() ? "trireme.recompute" : "the command line", TextOf(c)),
        "remove one of the two");
  }
  if (c.runs.empty() && c.layers_per_checkpoint > 0) c.runs.push_back({Recompute::kFull, 0});
  root.Record("trireme.recompute", TextOf(c),
              !flags.recompute_granularity.empty() ? "--recompute-granularity"
              : c.runs.empty()                     ? "default"
                                                   : "");
  TellWithoutEffect(in, config);
}

}  // namespace trireme
