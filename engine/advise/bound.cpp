#include "engine/advise/bound.h"

#include <algorithm>
#include <limits>
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

int64_t LeastBytesOf(const Plan& plan, int rank, bool offloaded) {
  const int64_t boundary = BufferBytes(plan, {BufferKind::kBoundary, 0, 0, 0, 0}), master = SizeOf(plan.dtypes.master);
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
  return bytes;
}

// Seconds of one micro-batch's passes on each pipeline rank, units alone.
std::vector<double> PassSecondsOf(const Plan& plan, const Cluster& cluster) {
  const CostModel model(plan, cluster);
  std::vector<double> of_rank(static_cast<size_t>(plan.topology.pp_size), 0);
  for (int unit = 0; unit < plan.num_units(); ++unit) {
    const UnitSeconds& seconds = model.OfUnit(unit);
    const bool again = plan.units[static_cast<size_t>(unit)].recompute == Recompute::kFull;
    of_rank[static_cast<size_t>(plan.PpRankOf(unit))] += seconds.forward.seconds +
                                                         (unit == plan.head() ? 0 : seconds.backward.seconds) +
                                                         (again ? seconds.recompute.seconds : 0);
  }
  return of_rank;
}

double StepOf(const Plan& plan, const std::vector<double>& of_rank) {
  double all = 0;
  for (const double seconds : of_rank) all += seconds;
  const double slowest = *std::ranges::max_element(of_rank), m = static_cast<double>(plan.batch.num_micro_batches);
  // Zero-bubble fills the gaps with weight products.
  const double bubble =
      plan.pipeline_schedule == PipelineSchedule::kZeroBubble ? 0 : (all - slowest) / plan.virtual_stages;
  return m * slowest + bubble;
}

// What the layers of a rank keep for one micro-batch.
int64_t KeptBytes(const Plan& plan, int rank) {
  int64_t bytes = 0;
  for (const int unit : plan.UnitsOf(rank)) {
    const UnitLayout& layout = plan.units[static_cast<size_t>(unit)];
    if (layout.spec.kind != UnitKind::kBlock) continue;
    const SavedLayout saved = LayOutSaved(layout.spec, plan.dtypes, plan.batch.tokens_per_micro_batch());
    bytes += saved.arena_bytes + saved.pool_bytes;
  }
  return bytes;
}

// The least that a rank's passes take longer if it may keep `room` bytes a micro-batch: shares of its layers are made
// again, by what is the cheaper way to a byte. All of a kind are alike.
double ExtraSeconds(double room, double kept, double cheap, double cheap_seconds, double full_seconds) {
  if (kept <= room) return 0;
  if (room < 0) return std::numeric_limits<double>::infinity();
  const bool cheap_pays = cheap < kept && cheap_seconds * kept <= full_seconds * (kept - cheap);
  if (!cheap_pays) return (kept - room) / kept * full_seconds;
  if (cheap <= room) return (kept - room) / (kept - cheap) * cheap_seconds;
  return cheap_seconds + (cheap - room) / cheap * std::max(0.0, full_seconds - cheap_seconds);
}

}  // namespace

double LeastSeconds(const Plan& plan, const Cluster& cluster) {
  const Placement placement(plan, cluster);
  double least = StepOf(plan, PassSecondsOf(plan, cluster));
  for (int rank = 0; rank < plan.topology.pp_size; ++rank) least = std::max(least, DpSeconds(plan, placement, rank));
  return least;
}

double LeastSecondsThatFit(const Plan& kept, const Plan& cheap, const Plan& full, const Cluster& cluster,
                           int64_t limit_bytes, bool offloaded) {
  std::vector<double> seconds = PassSecondsOf(kept, cluster);
  const std::vector<double> of_cheap = PassSecondsOf(cheap, cluster), of_full = PassSecondsOf(full, cluster);
  for (int rank = 0; rank < kept.topology.pp_size; ++rank) {
    const auto at = static_cast<size_t>(rank);
    const double room = static_cast<double>(limit_bytes - LeastBytesOf(kept, rank, offloaded)) /
                        static_cast<double>(InFlight(kept, rank));
    seconds[at] +=
        ExtraSeconds(room, static_cast<double>(KeptBytes(kept, rank)), static_cast<double>(KeptBytes(cheap, rank)),
                     of_cheap[at] - seconds[at], of_full[at] - seconds[at]);
  }
  return StepOf(kept, seconds);
}

int64_t LeastBytes(const Plan& plan, bool offloaded) {
  int64_t most = 0;
  for (int rank = 0; rank < plan.topology.pp_size; ++rank) most = std::max(most, LeastBytesOf(plan, rank, offloaded));
  return most;
}

}  // namespace trireme
