#include "engine/cli/plan_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "engine/advise/advice.h"
#include "engine/advise/fill.h"
#include "engine/base/error.h"
#include "engine/plan/notes.h"
#include "engine/schedule/placement.h"
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

// 0: not known.
double DeviceBytes(const PlanOptions& options, const std::optional<Cluster>& cluster) {
  if (options.gpu_memory_gib) return *options.gpu_memory_gib * 1024 * 1024 * 1024;
  return cluster ? static_cast<double>(cluster->device.memory_bytes) : 0;
}

RankRates RatesOf(const Planned& planned) {
  const std::optional<Cluster>& cluster = planned.cluster;
  if (!cluster || cluster->nodes == 1) return {};
  const NetworkDescription& network = cluster->network;
  const double ports = Placement(planned.plan, *cluster).Ports();
  // A ring crosses a node's boundary once, whichever of its ranks does it; groups of one node share its ports.
  const double of_node = static_cast<double>(SpreadOf(planned.plan, planned.ranks_per_node, Group::kTp).on_a_node) /
                         static_cast<double>(planned.ranks_per_node);
  return {network.port.all.bytes_per_second * ports * of_node, cluster->node_link.all.bytes_per_second,
          fmt::format(" ({} ports a node)", ports)};
}

std::vector<std::string> Advice(const PlanOptions& options, const Planned& planned) {
  const double memory = DeviceBytes(options, planned.cluster);
  const Job job{planned.config, planned.model, planned.inputs};
  return AdviceOn({.job = job,
                   .plan = planned.plan,
                   .cluster = planned.cluster ? &*planned.cluster : nullptr,
                   .prediction = planned.prediction ? &*planned.prediction : nullptr,
                   .limit_bytes = memory > 0 ? MemoryLimit(memory) : 0});
}

}  // namespace

std::string ConfigText(const PlanOptions& options) {
  Diagnostics diagnostics;
  const std::optional<ConfigSource> source = ReadConfigSource(options.deepspeed_config, diagnostics);
  diagnostics.ThrowIfErrors();
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
    if (!options.quiet) fmt::print(stderr, "{}", found->Render());
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
  planned.warnings = LayoutNotes(planned.plan, planned.ranks_per_node, RatesOf(planned));
  if (planned.cluster && !planned.cluster->device.rates.contains(planned.plan.dtypes.compute)) {
    planned.warnings.push_back(fmt::format("the cluster {} has no rates of {}: those of another type stand in for them",
                                           planned.cluster->name, Name(planned.plan.dtypes.compute)));
  }
  planned.advice = Advice(options, planned);
  return planned;
}

std::optional<Verdict> VerdictOf(const PlanOptions& options, const Planned& planned) {
  Verdict verdict;
  verdict.device_bytes = DeviceBytes(options, planned.cluster);
  if (verdict.device_bytes <= 0) return std::nullopt;
  const std::vector<MemoryAccount>& ranks = planned.plan.memory_of_pp_rank;
  const auto fullest = std::ranges::max_element(ranks, {}, &MemoryAccount::total);
  verdict.pp_rank = static_cast<int>(fullest - ranks.begin());
  verdict.needed_bytes = static_cast<double>(fullest->total());
  verdict.largest = LargestOf(ByClass(*fullest, MemoryMoment::kStep));
  const double left = verdict.device_bytes - kReservedBytes;
  verdict.tight = verdict.needed_bytes > kTightShare * left;
  verdict.fits = verdict.needed_bytes <= left;
  if (!planned.cluster || planned.cluster->host.memory_bytes <= 0) return verdict;
  for (const MemoryAccount& rank : ranks) {
    const double needed = static_cast<double>(rank.host.peak()) * static_cast<double>(planned.ranks_per_node);
    verdict.needed_host_bytes = std::max(verdict.needed_host_bytes, needed);
  }
  verdict.host_bytes = static_cast<double>(planned.cluster->host.memory_bytes);
  verdict.host_fits = verdict.needed_host_bytes <= verdict.host_bytes;
  verdict.fits = verdict.fits && verdict.host_fits;
  return verdict;
}

}  // namespace trireme::cli
