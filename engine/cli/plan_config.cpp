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

constexpr const char* kStandIn = "derived: stands in for a layout that cannot be";

using Keys = std::vector<std::pair<std::string, std::string>>;

// A grid of ranks, whatever the micro-batch, in the plainest pipeline. A cut by hand is one into the stages of `own`.
Keys GridKeys(const PipelineParallelConfig& own, int64_t tp, int64_t pp) {
  Keys keys = {{"train_micro_batch_size_per_gpu", "null"},
               {"gradient_accumulation_steps", "null"},
               {"trireme.sequence_parallel", "false"},
               {"trireme.pipeline.virtual_stages", "1"},
               {"trireme.pipeline.schedule", "1f1b"},
               {"tensor_parallel.tp_size", std::to_string(tp)},
               {"pipeline_parallel.pp_size", std::to_string(pp)}};
  if (own.partition.starts_with("layers:")) {
    keys.emplace_back("trireme.pipeline.partition", PipelineParallelConfig{}.partition);
  }
  return keys;
}

// What the command set with --with, and `keys` over it.
std::vector<std::string> WithKeysOf(const Keys& keys, std::vector<std::string> with) {
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

// Nobody typed the keys of its grid, so they have no source, and there is nothing to say about them.
RequestedConfig AsStandIn(ParseResult parsed, const Keys& grid) {
  RequestedConfig stand_in{std::move(parsed.config), parsed.diagnostics.problems(), ""};
  for (const auto& [key, value] : grid) {
    for (Origin& origin : stand_in.config.origins) {
      if (origin.key == key && !origin.source.starts_with("derived")) origin.source = kStandIn;
    }
    std::erase_if(stand_in.notices, [&](const Problem& problem) { return problem.key == key; });
  }
  return stand_in;
}

// The job in the first grid that can be. nullopt: none can, or the batch is that of the layout.
std::optional<RequestedConfig> InAnotherGrid(const PlanOptions& options, const PipelineParallelConfig& own,
                                             int64_t world_size, int64_t hidden_size,
                                             const std::function<void(const Config&)>& plan) {
  for (int64_t tp = 1; tp <= world_size; ++tp) {
    for (int64_t pp = 1; world_size % tp == 0 && tp * pp <= world_size; ++pp) {
      if (world_size % (tp * pp) != 0) continue;
      const Keys grid = GridKeys(own, tp, pp);
      ParseResult parsed =
          Parse(options, WithoutLayout(options.fill), WithKeysOf(grid, options.with), world_size, hidden_size);
      if (parsed.diagnostics.HasErrors() || !IsGiven(parsed.config, "train_batch_size")) continue;
      try {
        plan(parsed.config);
        return AsStandIn(std::move(parsed), grid);
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
  try {
    parsed.diagnostics.ThrowIfErrors();
    plan(parsed.config);
  } catch (const Error& error) {
    if (options.suggest.empty()) throw;
    std::optional<RequestedConfig> other =
        InAnotherGrid(options, parsed.config.pipeline_parallel, world_size, hidden_size, plan);
    if (!other) throw;
    other->refused = fmt::format("{}: {}: {}", error.id(), error.where(), error.message());
    return std::move(*other);
  }
  return {std::move(parsed.config), parsed.diagnostics.problems(), ""};
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
