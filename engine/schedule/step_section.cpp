// The step section of a Program: norms and scalars of the step, updates where the optimizers lie, and what brings the
// new weights to where the next step reads them.
#include <algorithm>

#include "engine/schedule/program_parts.h"

namespace trireme::program_parts {
namespace {

// Calls visit(units, on_host) for each run of units whose optimizer lies in one place.
template <typename Visit>
void ForEachPlace(const Plan& plan, const UnitRange& bucket, Visit visit) {
  for (int first = bucket.first, last = first; first <= bucket.last; first = ++last) {
    const bool on_host = plan.OptimizerOnHost(first);
    while (last < bucket.last && plan.OptimizerOnHost(last + 1) == on_host) ++last;
    visit(UnitRange{first, last}, on_host);
  }
}

// A copy of a tied weight comes first.
std::vector<UnitRange> BucketsOf(const Plan& plan, int pp_rank) {
  std::vector<UnitRange> buckets;
  if (plan.tied_across_stages() && pp_rank == plan.PpRankOf(plan.head())) buckets.push_back({0, 0});
  for (int stage = pp_rank; stage < plan.num_stages(); stage += plan.topology.pp_size) {
    const std::vector<UnitRange> of_stage = BucketsIn(plan, plan.stages[static_cast<size_t>(stage)]);
    buckets.insert(buckets.end(), of_stage.begin(), of_stage.end());
  }
  return buckets;
}

class TrainStep {
 public:
  TrainStep(const Plan& plan, int pp_rank, Program& program)
      : plan_(plan), held_(plan.UnitsOf(pp_rank)), buckets_(BucketsOf(plan, pp_rank)), program_(program) {}

  void Append() {
    const bool updates_on_host = std::ranges::any_of(held_, [&](int u) { return plan_.OptimizerOnHost(u); });
    TieReduce();
    OwnStats();
    WorldStats(plan_, program_);
    if (updates_on_host) CopyDown(program_).writes = {kHostState};
    if (plan_.trust_ratios) {
      for (const UnitRange& bucket : buckets_) UpdateNorms(bucket);
    }
    for (const UnitRange& bucket : buckets_) UpdateAndGather(bucket);
    if (!updates_on_host) CopyDown(program_);
    GuardArenas();
  }

  static void WorldStats(const Plan& plan, Program& program) {
    Instruction& world = Emit(program, Op::kStepStats, {0, plan.head()}, -1, Lane::kDp, Group::kWorld);
    world.reads = {kState};
    world.writes = {kState};
  }
  static Instruction& CopyDown(Program& program) {
    Instruction& copy = Emit(program, Op::kCopyDown, {}, -1, Lane::kDown);
    copy.reads = {kState};
    return copy;
  }

 private:
  void TieReduce() {
    if (!plan_.tied_across_stages() || held_.front() != 0) return;
    Instruction& tie = Emit(program_, Op::kTieReduce, {0, 0}, -1, Lane::kDp, Group::kTie);
    tie.reads = {Key(BufferKind::kGradientSum, 0)};
    tie.writes = tie.reads;
    GradientsDown(plan_, buckets_.front(), program_);
  }

  void OwnStats() {
    Instruction& own = Emit(program_, Op::kStepStats, {0, plan_.head()}, -1, Lane::kCompute);
    for (const int unit : held_) own.reads.push_back(Key(BufferKind::kGradientSum, unit));
    own.reads.push_back(kState);
    own.writes = {kState};
  }

  // Of all buckets before any is updated: while one's norms travel, the next one's are made.
  void UpdateNorms(const UnitRange& bucket) {
    Instruction& norms = Emit(program_, Op::kUpdateNorms, bucket, -1, Lane::kCompute);
    for (int unit = bucket.first; unit <= bucket.last; ++unit) {
      norms.reads.push_back(Key(BufferKind::kGradientSum, unit));
      if (!plan_.HasMaster(unit)) norms.reads.push_back(Key(BufferKind::kWeights, unit));
      norms.writes.push_back(Key(BufferKind::kMaster, unit));
      norms.writes.push_back(Key(BufferKind::kUpdateNorms, unit));
    }
    norms.reads.push_back(kState);
    if (plan_.effective_zero_stage > 0 && plan_.topology.dp_size > 1) ReduceNorms(bucket, Lane::kDp, Group::kDp);
  }

  void ReduceNorms(const UnitRange& bucket, Lane lane, Group group) {
    Instruction& reduce = Emit(program_, Op::kReduceNorms, bucket, -1, lane, group);
    for (int unit = bucket.first; unit <= bucket.last; ++unit) {
      reduce.reads.push_back(Key(BufferKind::kUpdateNorms, unit));
    }
    reduce.writes = reduce.reads;
  }

  void UpdateAndGather(const UnitRange& bucket) {
    ForEachPlace(plan_, bucket, [&](const UnitRange& units, bool on_host) { Update(units, on_host); });
    if (plan_.effective_zero_stage != 1 && plan_.effective_zero_stage != 2) return;
    Instruction& gather = Emit(program_, Op::kGather, bucket, -1, Lane::kDp, Group::kDp);
    for (int unit = bucket.first; unit <= bucket.last; ++unit) gather.reads.push_back(Key(BufferKind::kWeights, unit));
    gather.writes = gather.reads;
  }

  void Update(const UnitRange& units, bool on_host) {
    // Beside the units' own collectives, as TpReduce.
    if (plan_.trust_ratios && plan_.topology.tp_size > 1) ReduceNorms(units, Lane::kCompute, Group::kTp);
    Instruction& update = Emit(program_, Op::kUpdate, units, -1, on_host ? Lane::kCpu : Lane::kCompute);
    const bool moves = on_host != plan_.weights_on_host;
    const BufferKind made = !moves ? BufferKind::kWeights : on_host ? BufferKind::kHostWeights : BufferKind::kShard;
    const BufferKind gradient = plan_.trust_ratios ? BufferKind::kUpdateNorms
                                : on_host          ? BufferKind::kHostGradient
                                                   : BufferKind::kGradientSum;
    for (int unit = units.first; unit <= units.last; ++unit) {
      update.reads.push_back(Key(gradient, unit));
      if (plan_.moments_per_element > 0 || plan_.HasMaster(unit))
        update.writes.push_back(Key(BufferKind::kMaster, unit));
      update.writes.push_back(Key(made, unit));
    }
    update.reads.push_back(on_host ? kHostState : kState);
    if (moves) Move(units, on_host, made);
  }

  // What an update made where the weights do not live.
  void Move(const UnitRange& units, bool up, BufferKind made) {
    Instruction& copy = Emit(program_, up ? Op::kCopyUp : Op::kCopyDown, units, -1, up ? Lane::kUp : Lane::kDown);
    for (int unit = units.first; unit <= units.last; ++unit) {
      copy.reads.push_back(Key(made, unit));
      copy.writes.push_back(Key(BufferKind::kWeights, unit));
    }
    copy.frees = copy.reads;
  }

  // What the next Program puts into an arena waits for StepState: so the last CopyDown of a shard counts as its writer,
  // and where the next Program's kept inputs take the place of updated weights on the host the last CopyUp of these.
  void GuardArenas() {
    const auto guard = [&](Op op) {
      const auto last = std::ranges::find_if(
          program_.instructions.rbegin(), program_.instructions.rend(),
          [op](const Instruction& i) { return i.op == op && i.micro_batch < 0 && !i.frees.empty(); });
      if (last != program_.instructions.rend()) last->writes.push_back(kState);
    };
    guard(Op::kCopyDown);
    if (plan_.boundaries_on_host) guard(Op::kCopyUp);
  }

  const Plan& plan_;
  const std::vector<int> held_;
  const std::vector<UnitRange> buckets_;
  Program& program_;
};

}  // namespace

std::vector<UnitRange> BucketsIn(const Plan& plan, const UnitRange& stage) {
  std::vector<UnitRange> buckets;
  for (const UnitRange& bucket : plan.buckets) {
    if (bucket.first >= stage.first && bucket.last <= stage.last) buckets.push_back(bucket);
  }
  return buckets;
}

Instruction& Emit(Program& program, Op op, UnitRange units, int micro_batch, Lane lane, Group group) {
  Instruction instruction;
  instruction.id = static_cast<int32_t>(program.instructions.size());
  instruction.op = op;
  instruction.units = units;
  instruction.micro_batch = micro_batch;
  instruction.lane = lane;
  instruction.group = group;
  program.instructions.push_back(std::move(instruction));
  return program.instructions.back();
}

void GradientsDown(const Plan& plan, const UnitRange& bucket, Program& program) {
  ForEachPlace(plan, bucket, [&](const UnitRange& units, bool on_host) {
    if (!on_host) return;
    Instruction& copy = Emit(program, Op::kCopyDown, units, -1, Lane::kDown);
    for (int unit = units.first; unit <= units.last; ++unit) {
      copy.reads.push_back(Key(BufferKind::kGradientSum, unit));
      copy.writes.push_back(Key(BufferKind::kHostGradient, unit));
    }
  });
}

void AppendTrainStep(const Plan& plan, int pp_rank, Program& program) { TrainStep(plan, pp_rank, program).Append(); }

void AppendEvalStep(const Plan& plan, Program& program) {
  TrainStep::WorldStats(plan, program);
  TrainStep::CopyDown(program);
}

}  // namespace trireme::program_parts
