#include "engine/schedule/zero.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"

namespace trireme {
namespace {

using Keys = std::vector<BufferKey>;

BufferKey Key(BufferKind kind, int unit, int micro_batch = -1, int slot = 0) {
  return {kind, static_cast<int16_t>(unit), 0, micro_batch, static_cast<int16_t>(slot)};
}

const BufferKey kState = Key(BufferKind::kStepState, -1);

// Slots of kGathered and kSaved (instruction.h).
constexpr int kForwardSlot = 0, kBackwardSlot = 1, kTiedSlot = 2;
constexpr int kKeptSlot = 0, kScratchSlot = 1;

class ZeroBuilder {
 public:
  ZeroBuilder(const Plan& plan, ProgramKind kind, int rank)
      : plan_(plan),
        train_(kind == ProgramKind::kTrain),
        sharded_(plan.effective_zero_stage == 3),
        reduces_each_micro_batch_(plan.effective_zero_stage >= 2),
        head_(plan.num_units() - 1),
        num_micro_batches_(static_cast<int>(plan.batch.num_micro_batches)) {
    program_.kind = kind;
    program_.rank = rank;
  }

  Program Build() {
    if (sharded_) PlanGathers();
    for (int i = 0; i < num_micro_batches_; ++i) {
      Load(i);
      for (const UnitRange& bucket : plan_.buckets) ForwardBucket(bucket, i);
      if (!train_) continue;
      for (auto bucket = plan_.buckets.rbegin(); bucket != plan_.buckets.rend(); ++bucket) BackwardBucket(*bucket, i);
    }
    if (train_) {
      TrainStep();
    } else {
      EvalStep();
    }
    return std::move(program_);
  }

 private:
  // A Gather to come: `units` of micro-batch i into `slot` of kGathered.
  struct PlannedGather {
    UnitRange units;
    int micro_batch, slot;
  };

  Instruction& Emit(Op op, UnitRange units, int micro_batch, Lane lane, Group group = Group::kNone) {
    Instruction instruction;
    instruction.id = static_cast<int32_t>(program_.instructions.size());
    instruction.op = op;
    instruction.units = units;
    instruction.micro_batch = micro_batch;
    instruction.lane = lane;
    instruction.group = group;
    program_.instructions.push_back(std::move(instruction));
    return program_.instructions.back();
  }

  // Blocks, and an embedding of the user's: its Backward reads weights and what Forward left.
  bool Saves(int unit) const {
    const UnitSpec& spec = plan_.units[static_cast<size_t>(unit)].spec;
    return spec.kind == UnitKind::kBlock || (spec.kind == UnitKind::kEmbedding && spec.autograd);
  }
  bool Tied() const { return plan_.units[static_cast<size_t>(head_)].spec.reads_tied_embedding; }
  bool IsLast(const UnitRange& bucket) const { return bucket.last == head_; }
  bool ReadsGatheredTied() const { return sharded_ && Tied() && plan_.buckets.back().first > 0; }

  BufferKey Weights(int unit, int micro_batch, int slot) const {
    return sharded_ ? Key(BufferKind::kGathered, unit, micro_batch, slot) : Key(BufferKind::kWeights, unit);
  }
  BufferKey Gradient(int unit, int micro_batch) const {
    return reduces_each_micro_batch_ ? Key(BufferKind::kGradient, unit, micro_batch)
                                     : Key(BufferKind::kGradientSum, unit);
  }

  // Everything of lane `up` follows the first Load, and a Forward follows its Load; so one wait guards the whole arena
  // against the previous Program (zero.h).
  void Load(int i) {
    Instruction& load = Emit(Op::kLoad, {}, i, Lane::kUp);
    if (i == 0) load.reads = {kState};
    load.writes = {Key(BufferKind::kTokens, -1, i)};
  }

  // ---- Units.

  void Forward(int unit, int i) {
    Instruction& forward = Emit(Op::kForward, {unit, unit}, i, Lane::kCompute);
    forward.reads = {Weights(unit, i, kForwardSlot)};
    if (unit == 0) {
      forward.reads.push_back(Key(BufferKind::kTokens, -1, i));
      forward.writes = {Key(BufferKind::kBoundary, 0, i)};
    } else if (unit == head_) {
      HeadForward(forward, i);
    } else {
      const BufferKey input = Key(BufferKind::kBoundary, unit - 1, i);
      forward.reads.push_back(input);
      forward.writes = {Key(BufferKind::kBoundary, unit, i)};
      if (!train_) forward.frees.push_back(input);
    }
    if (!Saves(unit)) return;
    const bool keeps = train_ && plan_.recompute == Recompute::kNone;
    const BufferKey saved = Key(BufferKind::kSaved, unit, i, keeps ? kKeptSlot : kScratchSlot);
    forward.writes.push_back(saved);
    if (!keeps) forward.frees.push_back(saved);
  }

  void HeadForward(Instruction& forward, int i) const {
    const BufferKey tokens = Key(BufferKind::kTokens, -1, i), input = Key(BufferKind::kBoundary, head_ - 1, i);
    if (Tied()) forward.reads.push_back(Weights(0, i, ReadsGatheredTied() ? kTiedSlot : kForwardSlot));
    forward.reads.push_back(input);
    forward.reads.push_back(tokens);
    forward.frees = {input};
    if (train_) {
      forward.writes = {Key(BufferKind::kBoundaryGradient, head_ - 1, i)};
      forward.adds = {Gradient(head_, i)};
      if (Tied()) forward.adds.push_back(Gradient(0, i));
    } else {
      forward.frees.push_back(tokens);
    }
    forward.adds.push_back(kState);
  }

  void Recomputation(int unit, int i) {
    Instruction& recompute = Emit(Op::kRecompute, {unit, unit}, i, Lane::kCompute);
    recompute.reads = {Weights(unit, i, BackwardSlot(unit)),
                       unit == 0 ? Key(BufferKind::kTokens, -1, i) : Key(BufferKind::kBoundary, unit - 1, i)};
    recompute.writes = {Key(BufferKind::kSaved, unit, i, kKeptSlot)};
  }

  void Backward(int unit, int i) {
    Instruction& backward = Emit(Op::kBackward, {unit, unit}, i, Lane::kCompute);
    const BufferKey output_gradient = Key(BufferKind::kBoundaryGradient, unit, i);
    const BufferKey input = unit == 0 ? Key(BufferKind::kTokens, -1, i) : Key(BufferKind::kBoundary, unit - 1, i);
    backward.reads = {input, output_gradient};
    if (unit > 0) backward.writes = {Key(BufferKind::kBoundaryGradient, unit - 1, i)};
    backward.frees = backward.reads;
    if (Saves(unit)) {
      const BufferKey saved = Key(BufferKind::kSaved, unit, i, kKeptSlot);
      backward.reads.push_back(Weights(unit, i, BackwardSlot(unit)));
      backward.reads.push_back(saved);
      backward.frees.push_back(saved);
    }
    backward.adds = {Gradient(unit, i)};
  }

  int BackwardSlot(int unit) const { return unit >= plan_.buckets.back().first ? kForwardSlot : kBackwardSlot; }

  // ---- Buckets.

  void ForwardBucket(const UnitRange& bucket, int i) {
    if (sharded_) GatherUpToNextPhase();
    for (int unit = bucket.first; unit <= bucket.last; ++unit) Forward(unit, i);
    if (!sharded_) return;
    if (!IsLast(bucket)) {
      Release(bucket, i, kForwardSlot);
    } else if (!train_) {  // StepStats follows the head's Forward, and what uses the arena next follows StepStats
      std::vector<BufferKey>& frees = program_.instructions.back().frees;
      for (int unit = bucket.first; unit <= bucket.last; ++unit) frees.push_back(Weights(unit, i, kForwardSlot));
      if (ReadsGatheredTied()) frees.push_back(Weights(0, i, kTiedSlot));
    } else {  // kept for the backward pass, but for what that does not read
      Release({head_, head_}, i, kForwardSlot);
      if (bucket.first == 0 && !Saves(0)) Release({0, 0}, i, kForwardSlot);
    }
    if (train_ && IsLast(bucket) && ReadsGatheredTied()) Release({0, 0}, i, kTiedSlot);
  }

  void BackwardBucket(const UnitRange& bucket, int i) {
    if (sharded_ && !IsLast(bucket)) GatherUpToNextPhase();
    for (int unit = std::min(bucket.last, head_ - 1); unit >= bucket.first; --unit) {
      if (Saves(unit) && plan_.recompute == Recompute::kFull) Recomputation(unit, i);
      Backward(unit, i);
    }
    if (sharded_) Release(WithBackwardWeights(bucket), i, IsLast(bucket) ? kForwardSlot : kBackwardSlot);
    Reduce(bucket, i);
  }

  // The units of a bucket whose Backward reads weights. May be empty (first > last).
  UnitRange WithBackwardWeights(const UnitRange& bucket) const {
    return {std::max(bucket.first, Saves(0) ? 0 : 1), std::min(bucket.last, head_ - 1)};
  }

  void Release(UnitRange units, int i, int slot) {
    if (units.first > units.last) return;
    Instruction& release = Emit(Op::kRelease, units, i, Lane::kCompute);
    for (int unit = units.first; unit <= units.last; ++unit) {
      release.frees.push_back(Key(BufferKind::kGathered, unit, i, slot));
    }
  }

  // Phases of a ZeRO 3 program in order of use: each bucket's forward and, but for the last one, its backward.
  void PlanGathers() {
    for (int i = 0; i < num_micro_batches_; ++i) {
      for (const UnitRange& bucket : plan_.buckets) {
        phases_.push_back({{bucket, i, kForwardSlot}});
        if (IsLast(bucket) && ReadsGatheredTied()) phases_.back().push_back({{0, 0}, i, kTiedSlot});
      }
      if (!train_) continue;
      for (auto bucket = plan_.buckets.rbegin() + 1; bucket != plan_.buckets.rend(); ++bucket) {
        phases_.emplace_back();
        const UnitRange units = WithBackwardWeights(*bucket);
        if (units.first <= units.last) phases_.back().push_back({units, i, kBackwardSlot});
      }
    }
  }

  // Issues the gathers of the phase that begins now, if they are not yet, and of the next one.
  void GatherUpToNextPhase() {
    ++begun_phases_;
    for (; gathered_phases_ < std::min(begun_phases_ + 1, phases_.size()); ++gathered_phases_) {
      for (const PlannedGather& planned : phases_[gathered_phases_]) {
        Instruction& gather = Emit(Op::kGather, planned.units, planned.micro_batch, Lane::kDp, Group::kDp);
        for (int unit = planned.units.first; unit <= planned.units.last; ++unit) {
          gather.reads.push_back(Key(BufferKind::kWeights, unit));
          gather.writes.push_back(Key(BufferKind::kGathered, unit, planned.micro_batch, planned.slot));
        }
      }
    }
  }

  void Reduce(const UnitRange& bucket, int i) {
    if (plan_.topology.dp_size == 1) return;
    if (!reduces_each_micro_batch_ && i + 1 < num_micro_batches_) return;
    const bool converts = plan_.dtypes.communicate != plan_.dtypes.accumulate;
    Instruction& reduce = Emit(Op::kReduce, bucket, reduces_each_micro_batch_ ? i : -1, Lane::kDp, Group::kDp);
    for (int unit = bucket.first; unit <= bucket.last; ++unit) {
      const BufferKey sum = Key(BufferKind::kGradientSum, unit);
      Keys staging;
      if (reduces_each_micro_batch_) {
        const BufferKey gradient = Gradient(unit, i);
        reduce.reads.push_back(gradient);
        reduce.adds.push_back(sum);
        reduce.frees.push_back(gradient);
        staging.push_back(Key(BufferKind::kStaging, unit, i, 0));
      } else {
        reduce.reads.push_back(sum);
        reduce.writes.push_back(sum);
      }
      if (converts) staging.push_back(Key(BufferKind::kStaging, unit, i, 1));
      reduce.writes.insert(reduce.writes.end(), staging.begin(), staging.end());
      reduce.frees.insert(reduce.frees.end(), staging.begin(), staging.end());
    }
  }

  // ---- The step section.

  void TrainStep() {
    const UnitRange all{0, head_};
    Instruction& own = Emit(Op::kStepStats, all, -1, Lane::kCompute);
    for (int unit = 0; unit <= head_; ++unit) own.reads.push_back(Key(BufferKind::kGradientSum, unit));
    own.reads.push_back(kState);
    own.writes = {kState};
    WorldStats();
    const bool gathers = plan_.effective_zero_stage == 1 || plan_.effective_zero_stage == 2;
    for (const UnitRange& bucket : plan_.buckets) {
      Update(bucket);
      if (!gathers) continue;
      Instruction& gather = Emit(Op::kGather, bucket, -1, Lane::kDp, Group::kDp);
      for (int unit = bucket.first; unit <= bucket.last; ++unit)
        gather.reads.push_back(Key(BufferKind::kWeights, unit));
      gather.writes = gather.reads;
    }
    CopyDown();
  }

  void EvalStep() {
    WorldStats();
    CopyDown();
  }

  void WorldStats() {
    Instruction& world = Emit(Op::kStepStats, {0, head_}, -1, Lane::kDp, Group::kWorld);
    world.reads = {kState};
    world.writes = {kState};
  }

  void Update(const UnitRange& bucket) {
    Instruction& update = Emit(Op::kUpdate, bucket, -1, Lane::kCompute);
    const bool has_master = plan_.moments_per_element > 0 || plan_.separate_master;
    for (int unit = bucket.first; unit <= bucket.last; ++unit) {
      update.reads.push_back(Key(BufferKind::kGradientSum, unit));
      if (has_master) update.writes.push_back(Key(BufferKind::kMaster, unit));
      update.writes.push_back(Key(BufferKind::kWeights, unit));
    }
    update.reads.push_back(kState);
  }

  void CopyDown() { Emit(Op::kCopyDown, {}, -1, Lane::kDown).reads = {kState}; }

  const Plan& plan_;
  const bool train_, sharded_, reduces_each_micro_batch_;
  const int head_, num_micro_batches_;
  std::vector<std::vector<PlannedGather>> phases_;
  size_t begun_phases_ = 0, gathered_phases_ = 0;
  Program program_;
};

}  // namespace

Program MakeZeroProgram(const Plan& plan, ProgramKind kind, int rank) {
  TRIREME_CHECK(plan.num_units() >= 2 && !plan.buckets.empty(), "a plan has an embedding, a head and buckets");
  TRIREME_CHECK(plan.topology.pp_size == 1, "this schedule has no pipeline");
  return ZeroBuilder(plan, kind, rank).Build();
}

}  // namespace trireme
