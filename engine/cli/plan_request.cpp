#include "engine/cli/plan_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "engine/advise/advice.h"
#include "engine/advise/fill.h"
#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "engine/cli/plan_config.h"
#include "engine/plan/notes.h"
#include "engine/schedule/placement.h"
#include "engine/schedule/verify.h"
#include "parsers/model_config.h"

namespace trireme::cli {

namespace {

DeviceRoom RoomOf(const PlanOptions& options, const Planned& planned) {
  DeviceRoom room;
  const std::optional<Cluster>& cluster = planned.cluster;
  if (options.gpu_memory_gib) room.device_bytes = *options.gpu_memory_gib * 1024 * 1024 * 1024;
  if (!cluster) return room;
  if (!options.gpu_memory_gib) room.device_bytes = static_cast<double>(cluster->device.memory_bytes);
  room.ranks = Placement(planned.plan, *cluster).ranks_per_device();
  room.scope = cluster->device.kind == DeviceKind::kCpu ? MemoryScope::kProcess
               : room.ranks > 1                         ? MemoryScope::kSharedGpu
                                                        : MemoryScope::kGpu;
  return room;
}

constexpr int64_t kMostRanks = 1'000'000;

RankRates RatesOf(const Planned& planned) {
  const std::optional<Cluster>& cluster = planned.cluster;
  if (!cluster || cluster->nodes == 1) return {};
  const NetworkDescription& network = cluster->network;
  const double ports = Placement(planned.plan, *cluster).Ports();
  // A ring crosses a node's boundary once, whichever of its ranks does it; groups of one node share its ports.
  const double of_node = static_cast<double>(SpreadOf(planned.plan, planned.ranks_per_node, Group::kTp).on_a_node) /
                         static_cast<double>(planned.ranks_per_node);
  return {network.port.all.bytes_per_second * ports * of_node, cluster->node_link.all.bytes_per_second,
          fmt::format(" ({} port{} a node)", ports, ports == 1 ? "" : "s")};
}

std::vector<std::string> Advice(const Planned& planned) {
  const Job job{planned.config, planned.model, planned.inputs};
  return AdviceOn({.job = job,
                   .plan = planned.plan,
                   .cluster = planned.prediction ? &*planned.cluster : nullptr,
                   .prediction = planned.prediction ? &*planned.prediction : nullptr,
                   .limit = FillFor(planned)});
}

// Rates of a narrower type are higher; fp16 and bf16 run at the same.
void AddStandIn(Planned& planned) {
  const DeviceDescription& device = planned.cluster->device;
  const DType wanted = planned.plan.dtypes.compute;
  const ComputeRates& used = device.RatesOf(wanted);
  const auto stands_in = std::ranges::find_if(device.rates, [&](const auto& rates) { return &rates.second == &used; });
  const int64_t own = SizeOf(wanted), other = SizeOf(stands_in->first);
  if (own == other) return;
  planned.warnings.push_back(fmt::format(
      "the cluster {} has no rates of {}: those of {} stand in for them, so a step takes {} than predicted. "
      "fix: `trireme doctor --calibrate` measures the type on the machine",
      planned.cluster->name, Name(wanted), Name(stands_in->first), own > other ? "longer" : "less time"));
}

// trireme.fill: what `train` would choose for the memory that the verdict counts.
void TakeFill(Planned& planned) {
  if (!planned.config.trireme.fill) return;
  if (planned.room.device_bytes <= 0) {
    planned.warnings.push_back(
        "trireme.fill is on, and the memory of a device is not known: what `trireme train` will choose is not shown. "
        "fix: name the machine with --cluster, or give --gpu-memory-gib");
    return;
  }
  FillOptions options = FillFor(planned);
  options.may_offload = !planned.cluster || planned.cluster->device.kind == DeviceKind::kCuda;  // as `train` has it
  std::optional<Filled> filled = FillOwn({planned.config, planned.model, planned.inputs}, options);
  if (!filled) return;
  planned.fill =
      PlannedFill{DescribeFill(*filled, options), filled->fits, options.limit_bytes, options.Needs(filled->plan)};
  planned.config = std::move(filled->config);
  planned.plan = std::move(filled->plan);
}

void TakePrediction(Planned& planned) {
  if (!planned.cluster) return;
  const std::vector<std::string> missing = MissingRates(planned.plan, *planned.cluster);
  if (missing.empty()) {
    planned.prediction = Predict(planned.plan, *planned.cluster);
    return;
  }
  planned.warnings.push_back(fmt::format("no time is predicted: {}. fix: `trireme doctor --calibrate` measures it",
                                         MissingRatesText(missing, *planned.cluster)));
}

void TakeWarnings(Planned& planned) {
  for (std::string& note : LayoutNotes(planned.plan, planned.ranks_per_node, RatesOf(planned))) {
    planned.warnings.push_back(std::move(note));
  }
  if (planned.cluster && !planned.cluster->device.rates.contains(planned.plan.dtypes.compute)) AddStandIn(planned);
  if (planned.room.ranks > 1 && planned.cluster->device.kind == DeviceKind::kCuda) {
    planned.warnings.push_back(
        fmt::format("{} ranks share each of a node's {}: each may take 1/{} of its memory, and they take turns. "
                    "`trireme train` does so with --oversubscribe alone",
                    planned.room.ranks, Counted(planned.cluster->devices_per_node, "GPU"), planned.room.ranks));
  }
}

int64_t WorldSize(int64_t nodes, int64_t ranks_per_node) {
  if (nodes > kMostRanks / ranks_per_node) {
    throw Error(ErrorCode::kUsage, "USE002",
                fmt::format("{} nodes of {} ranks are more than {} ranks", nodes, ranks_per_node, kMostRanks),
                "--num_nodes", fmt::format("ask for at most {} ranks in all", kMostRanks));
  }
  return nodes * ranks_per_node;
}

// The machine, the model and the layout's plan; what the config gives to say is printed, but of one that is refused.
Planned Begin(const PlanOptions& options) {
  Planned planned;
  if (!options.cluster.empty()) planned.cluster = FindCluster(options.cluster);
  planned.num_nodes = options.num_nodes.value_or(planned.cluster ? planned.cluster->nodes : 1);
  planned.ranks_per_node = options.num_gpus.value_or(planned.cluster ? planned.cluster->devices_per_node : 1);
  if (planned.cluster) planned.cluster->nodes = planned.num_nodes;
  Diagnostics of_model;
  const ModelSpec model = ResolveModel(options.model, options.init_from, /*tp_size=*/1, of_model);
  of_model.ThrowIfErrors();
  planned.inputs.world_size = WorldSize(planned.num_nodes, planned.ranks_per_node);
  planned.inputs.sequence_length = options.seq_length;
  planned.inputs.fp64 = options.fill.fp64;
  planned.inputs.hidden_dropout = options.activations.hidden_dropout;
  RequestedConfig requested =
      ReadRequested(options, planned.inputs.world_size, model.hidden_size, [&](const Config& config) {
        planned.model = model;
        PadVocabulary(planned.model, config.tensor_parallel.tp_size);
        planned.plan = MakePlan(config, planned.model, planned.inputs);
      });
  planned.notices = of_model.problems();
  planned.notices.insert(planned.notices.end(), requested.notices.begin(), requested.notices.end());
  planned.refused = std::move(requested.refused);
  if (planned.refused.empty()) PrintNotices(options, planned);
  planned.written = planned.config = std::move(requested.config);
  AccountMemory(planned.plan);
  return planned;
}

}  // namespace

void PrintNotices(const PlanOptions& options, const Planned& planned) {
  for (const Problem& problem : planned.notices) {
    if (!options.quiet) fmt::print(stderr, "{}\n", Render(problem));
  }
}

Planned PlanRequested(const PlanOptions& options) {
  Planned planned = Begin(options);
  planned.room = RoomOf(options, planned);
  TakeFill(planned);
  TakePrediction(planned);
  if (planned.plan.topology.pp_size > 1 && planned.plan.effective_zero_stage >= 2) {
    Config config = planned.config;
    config.zero_optimization.zero_stage = 1;
    planned.stage_1 = MakePlan(config, planned.model, planned.inputs);
    AccountMemory(*planned.stage_1);
  }
  TakeWarnings(planned);
  planned.advice = Advice(planned);
  return planned;
}

FillOptions FillFor(const Planned& planned, double share) {
  FillOptions fill;
  fill.scope = planned.room.scope;
  fill.limit_bytes = MemoryLimit(planned.room.of_rank(), fill.scope, share);
  if (!planned.cluster) return fill;
  const HostDescription& host = planned.cluster->host;
  const HostLinkDescription& link = planned.cluster->host_link;
  fill.may_offload = planned.cluster->device.kind == DeviceKind::kCuda && host.memory_bytes > 0 &&
                     link.up_bytes_per_second > 0 && link.down_bytes_per_second > 0 &&
                     (host.update_bytes_per_second > 0 || host.MemoryBytesPerSecond() > 0);
  if (host.memory_bytes > 0) {
    fill.host_limit_bytes = static_cast<int64_t>(share * static_cast<double>(host.memory_bytes) /
                                                 static_cast<double>(planned.ranks_per_node));
  }
  return fill;
}

std::optional<Verdict> VerdictOf(const Planned& planned) {
  const DeviceRoom& room = planned.room;
  if (room.device_bytes <= 0) return std::nullopt;
  Verdict verdict;
  verdict.device_bytes = room.device_bytes;
  verdict.ranks_per_device = room.ranks;
  const std::vector<MemoryAccount>& ranks = planned.plan.memory_of_pp_rank;
  const MemoryAccount& fullest = FullestRank(planned.plan, room.scope);
  verdict.pp_rank = static_cast<int>(&fullest - ranks.data());
  const int64_t needed = BytesIn(fullest, room.scope);
  verdict.needed_bytes = static_cast<double>(needed);
  verdict.largest = LargestOf(ByClass(fullest, MemoryMoment::kStep));
  verdict.tight = needed > MemoryLimit(room.of_rank(), room.scope);
  verdict.fits = needed <= MemoryLimit(room.of_rank(), room.scope, 1);
  if (!planned.cluster || planned.cluster->host.memory_bytes <= 0) return verdict;
  for (const MemoryAccount& rank : ranks) {
    const double of_node = static_cast<double>(rank.host.peak()) * static_cast<double>(planned.ranks_per_node);
    verdict.needed_host_bytes = std::max(verdict.needed_host_bytes, of_node);
  }
  verdict.host_bytes = static_cast<double>(planned.cluster->host.memory_bytes);
  verdict.host_fits = verdict.needed_host_bytes <= verdict.host_bytes;
  verdict.fits = verdict.fits && verdict.host_fits;
  return verdict;
}

}  // namespace trireme::cli
