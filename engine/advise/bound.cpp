#include "engine/advise/bound.h"

#include <algorithm>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/schedule/buffers.h"
#include "engine/schedule/cost_model.h"
#include "engine/schedule/placement.h"

namespace trireme {
namespace {

// Micro-batches whose inputs a rank holds at once, at least.
int64_t InFlight(const Plan& plan, int pp_rank) {
  const int64_t m = plan.batch.num_micro_batches;
  if (plan.pipeline_schedule == PipelineSchedule::kGPipe && plan.topology.pp_size > 1) return m;
  return std::min<int64_t>(plan.topology.pp_size - pp_rank, m);
}

// Lane dp of one rank: gathers before forward and backward passes at ZeRO 3, else after the update; reductions of each
// micro-batch or of the step. As if each kind were one collective.
double DpSeconds(const Plan& plan, const Placement& placement, int pp_rank) {
  if (plan.topology.dp_size == 1) return 0;
  const int stage = plan.effective_zero_stage;
  double elements = 0, of_blocks = 0;
  for (const int unit : plan.UnitsOf(pp_rank)) {
    const UnitLayout& layout = plan.units[static_cast<size_t>(unit)];
    elements += static_cast<double>(layout.padded_elements);
    if (layout.spec.kind == UnitKind::kBlock) of_blocks += static_cast<double>(layout.padded_elements);
  }
  const double weight = static_cast<double>(SizeOf(plan.dtypes.compute)),
               gradient = elements * static_cast<double>(SizeOf(plan.dtypes.communicate)),
               m = static_cast<double>(plan.batch.num_micro_batches);
  if (stage == 0) return placement.Seconds(Group::kDp, Collective::kAllReduce, gradient);
  const double gathers = stage == 3 ? m * placement.Seconds(Group::kDp, Collective::kAllGather, 2 * of_blocks * weight)
                                    : placement.Seconds(Group::kDp, Collective::kAllGather, elements * weight);
  return gathers + (stage >= 2 ? m : 1) * placement.Seconds(Group::kDp, Collective::kReduceScatter, gradient);
}

}  // namespace

double LeastSeconds(const Plan& plan, const Cluster& cluster) {
  const CostModel model(plan, cluster);
  const Placement placement(plan, cluster);
  const int pp = plan.topology.pp_size;
  std::vector<double> of_rank(static_cast<size_t>(pp), 0);  // forward and backward of one micro-batch
  double all = 0;
  for (int unit = 0; unit < plan.num_units(); ++unit) {
    const UnitSeconds& seconds = model.OfUnit(unit);
    const double both = seconds.forward.seconds + (unit == plan.head() ? 0 : seconds.backward.seconds);
    of_rank[static_cast<size_t>(plan.PpRankOf(unit))] += both;
    all += both;
  }
  const double slowest = *std::ranges::max_element(of_rank);
  const double m = static_cast<double>(plan.batch.num_micro_batches);
  // Zero-bubble fills the gaps with weight products.
  const double bubble =
      plan.pipeline_schedule == PipelineSchedule::kZeroBubble ? 0 : (all - slowest) / plan.virtual_stages;
  double least = m * slowest + bubble;
  for (int rank = 0; rank < pp; ++rank) least = std::max(least, DpSeconds(plan, placement, rank));
  return least;
}

int64_t LeastBytes(const Plan& plan, bool offloaded) {
  int64_t most = 0;
  const int64_t boundary = BufferBytes(plan, {BufferKind::kBoundary, 0, 0, 0, 0}), master = SizeOf(plan.dtypes.master);
  for (int rank = 0; rank < plan.topology.pp_size; ++rank) {
    int64_t bytes = WorkspaceBytes(plan, rank);
    for (const int unit : plan.UnitsOf(rank)) {
      const auto of = [&](BufferKind kind) { return BufferBytes(plan, {kind, static_cast<int16_t>(unit), 0, -1, 0}); };
      if (!plan.weights_on_host) bytes += of(BufferKind::kWeights);
      bytes += of(BufferKind::kGradientSum);
      if (!offloaded)
        bytes += plan.OwnElements(unit) * master * (plan.moments_per_element + (plan.separate_master ? 1 : 0));
      const bool block = plan.units[static_cast<size_t>(unit)].spec.kind == UnitKind::kBlock;
      if (block && !plan.boundaries_on_host && !plan.partition_boundaries) bytes += boundary * InFlight(plan, rank);
    }
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace trireme
