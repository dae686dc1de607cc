#include "engine/cli/plan_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "parsers/config_source.h"
#include "parsers/layout_text.h"

namespace trireme::cli {
namespace {

ParseResult Parse(const PlanOptions& options, const TrainFlags& flags, const std::vector<std::string>& with,
                  int64_t world_size, int64_t hidden_size) {
  Diagnostics unread;
  const std::optional<ConfigSource> source = ReadConfigSource(options.deepspeed_config, unread);
  if (!source) return {{}, unread};
  return ParseConfigText(source->text, source->name, flags, world_size, hidden_size, with);
}

// What the command set with --with, and a grid of ranks over it, whatever the micro-batch.
std::vector<std::string> WithGrid(std::vector<std::string> with, int64_t tp, int64_t pp) {
  const std::pair<std::string, std::string> keys[] = {{"train_micro_batch_size_per_gpu", "null"},
                                                      {"gradient_accumulation_steps", "null"},
                                                      {"trireme.sequence_parallel", "false"},
                                                      {"tensor_parallel.tp_size", std::to_string(tp)},
                                                      {"pipeline_parallel.pp_size", std::to_string(pp)}};
  for (const auto& [key, value] : keys) {
    std::erase_if(with, [&](const std::string& assignment) { return assignment.starts_with(key + "="); });
    with.push_back(key + "=" + value);
  }
  return with;
}

bool IsGiven(const Config& config, std::string_view key) {
  const auto row = std::ranges::find(config.origins, key, &Origin::key);
  return row != config.origins.end() && !row->source.starts_with("derived");
}

// The job in the first grid that can be. nullopt: none can, or the batch is that of the layout.
std::optional<ParseResult> InAnotherGrid(const PlanOptions& options, int64_t world_size, int64_t hidden_size,
                                         const std::function<void(const Config&)>& plan) {
  for (int64_t tp = 1; tp <= world_size; ++tp) {
    for (int64_t pp = 1; world_size % tp == 0 && tp * pp <= world_size; ++pp) {
      if (world_size % (tp * pp) != 0) continue;
      ParseResult parsed =
          Parse(options, WithoutLayout(options.fill), WithGrid(options.with, tp, pp), world_size, hidden_size);
      if (parsed.diagnostics.HasErrors() || !IsGiven(parsed.config, "train_batch_size")) continue;
      try {
        plan(parsed.config);
        return parsed;
      } catch (const Error&) {  // the next may be
      }
    }
  }
  return std::nullopt;
}

}  // namespace

RequestedConfig ReadRequested(const PlanOptions& options, int64_t world_size, int64_t hidden_size,
                              const std::function<void(const Config&)>& plan) {
  ParseResult parsed = Parse(options, options.fill, options.with, world_size, hidden_size);
  std::string refused;
  try {
    parsed.diagnostics.ThrowIfErrors();
    plan(parsed.config);
  } catch (const Error& error) {
    if (options.suggest.empty()) throw;
    std::optional<ParseResult> other = InAnotherGrid(options, world_size, hidden_size, plan);
    if (!other) throw;
    refused = fmt::format("{}: {}: {}", error.id(), error.where(), error.message());
    parsed = std::move(*other);
  }
  return {std::move(parsed.config), parsed.diagnostics.problems(), refused};
}

std::string ConfigText(const PlanOptions& options) {
  Diagnostics diagnostics;
  const std::optional<ConfigSource> source = ReadConfigSource(options.deepspeed_config, diagnostics);
  diagnostics.ThrowIfErrors();
  return options.with.empty() ? source->text : WithKeys(source->text, source->name, options.with);
}

TrainFlags WithoutLayout(TrainFlags flags) {
  flags.micro_batch_size = flags.gradient_accumulation_steps = std::nullopt;
  flags.tensor_model_parallel_size = flags.pipeline_model_parallel_size = flags.recompute_num_layers = std::nullopt;
  flags.recompute_granularity = flags.recompute_method = "";
  flags.sequence_parallel = false;
  return flags;
}

}  // namespace trireme::cli
