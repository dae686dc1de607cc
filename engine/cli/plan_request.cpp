#include "engine/cli/plan_request.h"

#include <fmt/core.h>

#include <cstdio>

#include "engine/schedule/verify.h"
#include "parsers/config_source.h"
#include "parsers/layout_text.h"
#include "parsers/model_config.h"

namespace trireme::cli {

namespace {

ParseResult Parse(const PlanOptions& options, int64_t world_size, int64_t hidden_size) {
  if (options.with.empty()) {
    return ParseConfigFile(options.deepspeed_config, options.fill, world_size, hidden_size);
  }
  return ParseConfigText(ConfigText(options), options.deepspeed_config, options.fill, world_size, hidden_size);
}

}  // namespace

std::string ConfigText(const PlanOptions& options) {
  Diagnostics unread;
  const std::optional<ConfigSource> source = ReadConfigSource(options.deepspeed_config, unread);
  unread.ThrowIfErrors();
  return options.with.empty() ? source->text : WithKeys(source->text, source->name, options.with);
}

Planned PlanRequested(const PlanOptions& options) {
  Planned planned;
  if (!options.cluster.empty()) planned.cluster = FindCluster(options.cluster);
  planned.num_nodes = options.num_nodes.value_or(planned.cluster ? planned.cluster->nodes : 1);
  planned.ranks_per_node = options.num_gpus.value_or(planned.cluster ? planned.cluster->devices_per_node : 1);
  if (planned.cluster) planned.cluster->nodes = planned.num_nodes;
  Diagnostics of_model;
  planned.model = ResolveModel(options.model, options.init_from, /*tp_size=*/1, of_model);
  of_model.ThrowIfErrors();
  const int64_t world_size = planned.num_nodes * planned.ranks_per_node;
  ParseResult parsed = Parse(options, world_size, planned.model.hidden_size);
  if (options.fill.strict) parsed.diagnostics.WarningsAreErrors();
  parsed.diagnostics.ThrowIfErrors();
  for (const Diagnostics* found : {&of_model, &parsed.diagnostics}) {
    fmt::print(stderr, "{}", found->Render(Severity::kWarning));
  }
  planned.config = std::move(parsed.config);
  PadVocabulary(planned.model, planned.config.tensor_parallel.tp_size);
  planned.inputs.world_size = world_size;
  planned.inputs.sequence_length = options.seq_length;
  planned.inputs.fp64 = options.fill.fp64;
  planned.inputs.hidden_dropout = options.activations.hidden_dropout;
  planned.plan = MakePlan(planned.config, planned.model, planned.inputs);
  AccountMemory(planned.plan);
  if (planned.cluster) planned.prediction = Predict(planned.plan, *planned.cluster);
  if (planned.plan.topology.pp_size > 1 && planned.plan.effective_zero_stage >= 2) {
    Config config = planned.config;
    config.zero_optimization.zero_stage = 1;
    planned.stage_1 = MakePlan(config, planned.model, planned.inputs);
    AccountMemory(*planned.stage_1);
  }
  return planned;
}

double MemoryOfDevice(const PlanOptions& options, const Planned& planned) {
  if (options.gpu_memory_gib) return *options.gpu_memory_gib * 1024 * 1024 * 1024;
  return planned.cluster ? static_cast<double>(planned.cluster->device.memory_bytes) : 0;
}

}  // namespace trireme::cli
