#include "engine/schedule/pipeline_events.h"

#include <algorithm>
#include <tuple>

#include "engine/schedule/pipeline_times.h"

namespace trireme {
namespace {

using Kind = Pass::Kind;

double SecondsOf(Kind kind, bool recomputes) {
  switch (kind) {
    case Kind::kForward:
    case Kind::kBackwardWeight:
      return 1;
    case Kind::kBackward:
      return recomputes ? 3 : 2;
    case Kind::kBackwardInput:
      return recomputes ? 2 : 1;
  }
  return 1;
}

struct TimedTransfer {
  double time = 0;
  Transfer transfer;
  auto Order() const { return std::tuple(time, transfer.gradient, transfer.unit, transfer.micro_batch); }
};

// What leaves a stage at the end of one of its passes, if anything, as this rank sees it.
void AddTransfer(const Plan& plan, const Pass& pass, int of_rank, double end, int pp_rank,
                 std::vector<TimedTransfer>& transfers) {
  const int pp = plan.topology.pp_size, stage = pass.chunk * pp + of_rank;
  const bool gradient = pass.kind == Kind::kBackward || pass.kind == Kind::kBackwardInput;
  const int target = gradient ? stage - 1 : stage + 1;
  if (pass.kind == Kind::kBackwardWeight || target < 0 || target == plan.num_stages()) return;
  const int to_rank = target % pp;
  if (of_rank != pp_rank && to_rank != pp_rank) return;
  const bool sends = of_rank == pp_rank;
  const int unit = plan.stages[static_cast<size_t>(std::min(stage, target))].last;
  transfers.push_back({end, {gradient, sends, unit, pass.micro_batch, sends ? to_rank : of_rank, 0}});
}

}  // namespace

std::vector<PipelineEvent> EventsOf(const Plan& plan, ProgramKind kind, int pp_rank) {
  const PipelineShape shape{plan.pipeline_schedule, plan.topology.pp_size, plan.virtual_stages,
                            static_cast<int>(plan.batch.num_micro_batches)};
  std::vector<std::vector<Pass>> passes;
  for (int rank = 0; rank < shape.pp_size; ++rank) {
    passes.push_back(kind == ProgramKind::kTrain ? TrainPasses(shape, rank) : EvalPasses(shape, rank));
  }
  const bool recomputes = plan.recomputes();
  const auto times = TimePasses(shape, passes, [&](int, Kind of) { return SecondsOf(of, recomputes); });

  std::vector<TimedTransfer> transfers;
  for (int rank = 0; rank < shape.pp_size; ++rank) {
    const size_t r = static_cast<size_t>(rank);
    for (size_t k = 0; k < passes[r].size(); ++k) {
      AddTransfer(plan, passes[r][k], rank, times[r][k].end, pp_rank, transfers);
    }
  }
  std::ranges::sort(transfers, {}, &TimedTransfer::Order);
  for (size_t i = 1; i < transfers.size(); ++i) {
    transfers[i].transfer.post = transfers[i - 1].transfer.post + (transfers[i].time > transfers[i - 1].time ? 1 : 0);
  }

  // A pass follows the transfers that are ready when it starts: what it receives is among them.
  std::vector<PipelineEvent> events;
  auto next = transfers.begin();
  const size_t own = static_cast<size_t>(pp_rank);
  for (size_t k = 0; k < passes[own].size(); ++k) {
    for (; next != transfers.end() && next->time <= times[own][k].start; ++next) events.emplace_back(next->transfer);
    events.emplace_back(passes[own][k]);
  }
  for (; next != transfers.end(); ++next) events.emplace_back(next->transfer);
  return events;
}

}  // namespace trireme
