#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "engine/base/error.h"
#include "engine/plan/parts.h"

namespace trireme::plan_parts {
namespace {

// Of `count` layers, in order.
std::vector<Recompute> Policies(const std::vector<RecomputeRun>& runs, int64_t count) {
  std::vector<Recompute> policies;
  for (const RecomputeRun& run : runs) {
    const int64_t left = count - static_cast<int64_t>(policies.size());
    policies.insert(policies.end(), static_cast<size_t>(run.layers == 0 ? left : std::min(run.layers, left)),
                    run.policy);
  }
  policies.resize(static_cast<size_t>(count), Recompute::kNone);
  return policies;
}

void CheckRuns(const RecomputeConfig& config, int64_t layers) {
  int64_t named = 0;
  for (const RecomputeRun& run : config.runs) named += run.layers;
  if (config.of_each_stage || named <= layers) return;
  throw Error(ErrorCode::kConfig, "PLN030", fmt::format("names {} layers, the model has {}", named, layers),
              "trireme.recompute", fmt::format("leave {} of them out", named - layers));
}

int64_t LayersPerCheckpoint(const RecomputeConfig& config, int64_t layers) {
  if (config.layers_per_checkpoint > 0) return config.layers_per_checkpoint;
  if (config.number_checkpoints == 0) return 1;
  return (layers + config.number_checkpoints - 1) / config.number_checkpoints;
}

// Layers of one stage that follow each other, so many at a time; a user's embedding stands alone.
void FormSegments(int64_t length, Plan& plan) {
  for (const UnitRange& stage : plan.stages) {
    for (int unit = stage.first; unit <= stage.last; ++unit) {
      UnitLayout& layout = plan.units[static_cast<size_t>(unit)];
      layout.segment = {unit, unit};
      if (layout.recompute != Recompute::kFull || unit <= std::max(stage.first, 1)) continue;
      const UnitLayout& before = plan.units[static_cast<size_t>(unit - 1)];
      if (before.recompute != Recompute::kFull || unit - before.segment.first >= length) continue;
      layout.segment.first = before.segment.first;
      for (int earlier = layout.segment.first; earlier <= unit; ++earlier) {
        plan.units[static_cast<size_t>(earlier)].segment.last = unit;
      }
    }
  }
}

void CheckPartition(const Plan& plan) {
  const int64_t elements = plan.boundary_tokens() * plan.model.hidden_size;
  if (elements % plan.topology.tp_size == 0) return;
  throw Error(
      ErrorCode::kConfig, "PLN030",
      fmt::format("{} elements of a layer's input do not divide by tp_size {}", elements, plan.topology.tp_size),
      "activation_checkpointing.partition_activations", "set it to false, or tp_size to a divisor");
}

}  // namespace

void AssignRecompute(const RecomputeConfig& config, Recompute everywhere, Plan& plan) {
  const int64_t layers = plan.model.num_layers;
  const std::vector<RecomputeRun> runs = config.runs.empty() ? std::vector{RecomputeRun{everywhere, 0}} : config.runs;
  CheckRuns(config, layers);
  std::vector<Recompute> of_layers;
  if (config.of_each_stage) {
    for (const UnitRange& stage : plan.stages) {
      const int first = std::max(stage.first, 1), last = std::min(stage.last, plan.head() - 1);
      const std::vector<Recompute> part = Policies(runs, std::max(0, last - first + 1));
      of_layers.insert(of_layers.end(), part.begin(), part.end());
    }
  } else {
    of_layers = Policies(runs, layers);
  }
  for (UnitLayout& layout : plan.units) {
    const bool own_embedding = layout.spec.kind == UnitKind::kEmbedding && layout.spec.autograd;
    if (layout.spec.kind != UnitKind::kBlock && !own_embedding) continue;
    layout.recompute = of_layers[static_cast<size_t>(std::max<int64_t>(layout.spec.layer, 0))];
    if (layout.recompute != Recompute::kCheap) continue;
    if (own_embedding) {
      layout.recompute = Recompute::kNone;
      continue;
    }
    if (layout.spec.autograd) {
      throw Error(ErrorCode::kConfig, "PLN030", "a module of one's own does not say what is cheap to make once more",
                  layout.spec.name, "give its layer the policy full, or keep");
    }
    DropCheap(layout.spec, plan.dtypes.compute);
  }
  FormSegments(LayersPerCheckpoint(config, layers), plan);
  plan.partition_boundaries = config.partition_activations && plan.topology.tp_size > 1 && !plan.sequence_parallel;
  if (plan.partition_boundaries) CheckPartition(plan);
  plan.boundaries_on_host = config.cpu_checkpointing && plan.recomputes();
}

}  // namespace trireme::plan_parts
