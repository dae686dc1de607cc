// One builder in one file: passes, phases of gathers and what was brought back last are the state of a single walk over
// the step, which every function here reads or moves on.
#include "engine/schedule/make_program.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/error.h"
#include "engine/schedule/pipeline_events.h"
#include "engine/schedule/program_parts.h"

namespace trireme {
namespace {

using namespace program_parts;

// Slots of kGathered, kSaved and kBoundary (instruction.h).
constexpr int kForwardSlot = 0, kBackwardSlot = 1, kTiedSlot = 2, kRecomputeSlot = 3;
constexpr int kKeptSlot = 0, kScratchSlot = 1;
constexpr int kBroughtBackSlot = 1;  // of kBoundary and kBoundaryPart

class ProgramBuilder {
 public:
  ProgramBuilder(const Plan& plan, ProgramKind kind, int rank)
      : plan_(plan),
        train_(kind == ProgramKind::kTrain),
        sharded_(plan.effective_zero_stage == 3),
        reduces_each_micro_batch_(plan.effective_zero_stage >= 2 && plan.topology.dp_size > 1),
        pp_rank_(plan.topology.CoordinateOf(rank).pp_rank),
        head_(plan.head()),
        num_micro_batches_(static_cast<int>(plan.batch.num_micro_batches)),
        events_(EventsOf(plan, kind, pp_rank_)) {
    program_.kind = kind;
    program_.rank = rank;
    for (int stage = pp_rank_; stage < plan.num_stages(); stage += plan.topology.pp_size) {
      const UnitRange& units = plan.stages[static_cast<size_t>(stage)];
      stages_.push_back({units, BucketsIn(plan, units)});
    }
    for (const PipelineEvent& event : events_) {
      if (const Pass* pass = std::get_if<Pass>(&event)) passes_.push_back(*pass);
    }
  }

  Program Build() {
    if (sharded_) PlanGathers();
    for (const PipelineEvent& event : events_) {
      if (const Pass* pass = std::get_if<Pass>(&event)) {
        Run(*pass);
        ++passes_done_;
      } else {
        Move(std::get<Transfer>(event));
      }
    }
    GuardArena();
    if (train_) {
      AppendTrainStep(plan_, pp_rank_, program_);
    } else {
      AppendEvalStep(plan_, program_);
    }
    return std::move(program_);
  }

 private:
  // One chunk of this rank.
  struct Stage {
    UnitRange units;
    std::vector<UnitRange> buckets;
  };
  // A Gather to come: `units` of micro-batch i into `slot` of kGathered.
  struct PlannedGather {
    UnitRange units;
    int micro_batch, slot;
  };

  Instruction& Emit(Op op, UnitRange units, int micro_batch, Lane lane, Group group = Group::kNone) {
    return program_parts::Emit(program_, op, units, micro_batch, lane, group);
  }

  // Blocks, and an embedding of the user's: its Backward reads weights and what Forward left.
  bool Saves(int unit) const {
    const UnitSpec& spec = plan_.units[static_cast<size_t>(unit)].spec;
    return spec.kind == UnitKind::kBlock || (spec.kind == UnitKind::kEmbedding && spec.autograd);
  }
  bool Recomputes(int unit) const {
    return train_ && Saves(unit) && plan_.units[static_cast<size_t>(unit)].recompute == Recompute::kFull;
  }
  const UnitRange& SegmentOf(int unit) const { return plan_.units[static_cast<size_t>(unit)].segment; }
  // Its input is kept by its segment, but not as it is: in parts, or on the host.
  bool PutsInputAway(int unit) const {
    return (plan_.partition_boundaries || plan_.boundaries_on_host) && unit > 0 && Recomputes(unit) &&
           SegmentOf(unit).first == unit;
  }
  // What Recompute and Backward of a block read.
  BufferKey InputOf(int unit, int i) const {
    const bool forgotten = PutsInputAway(unit) || (Recomputes(unit) && SegmentOf(unit).first < unit);
    return Key(BufferKind::kBoundary, unit - 1, i, forgotten ? kBroughtBackSlot : 0);
  }
  bool Tied() const { return plan_.units[static_cast<size_t>(head_)].spec.reads_tied_embedding; }
  bool HoldsTiedCopy() const { return plan_.tied_across_stages() && pp_rank_ == plan_.PpRankOf(head_); }
  bool HasHead(const UnitRange& units) const { return units.last == head_; }
  static bool HasEmbedding(const UnitRange& units) { return units.first == 0; }
  // The head reads unit 0 from a gather of its own.
  bool GathersTied(const UnitRange& bucket) const { return sharded_ && Tied() && HasHead(bucket) && bucket.first > 0; }

  BufferKey Weights(int unit, int micro_batch, int slot) const {
    return sharded_ ? Key(BufferKind::kGathered, unit, micro_batch, slot) : Key(BufferKind::kWeights, unit);
  }
  BufferKey Gradient(int unit, int micro_batch) const {
    return reduces_each_micro_batch_ ? Key(BufferKind::kGradient, unit, micro_batch)
                                     : Key(BufferKind::kGradientSum, unit);
  }

  // ---- Passes and transfers.

  void Run(const Pass& pass) {
    const Stage& stage = stages_[static_cast<size_t>(pass.chunk)];
    const int i = pass.micro_batch;
    if (pass.kind == Pass::Kind::kForward) {
      if (HasEmbedding(stage.units) || HasHead(stage.units)) Load(i);
      for (const UnitRange& bucket : stage.buckets) ForwardBucket(bucket, i);
      return;
    }
    if (pass.kind != Pass::Kind::kBackwardInput && HasHead(stage.units) && HoldsTiedCopy()) Reduce({0, 0}, i);
    for (auto bucket = stage.buckets.rbegin(); bucket != stage.buckets.rend(); ++bucket) {
      if (pass.kind == Pass::Kind::kBackwardWeight) {
        BackwardWeightBucket(*bucket, i);
      } else {
        RecomputeBuckets(RecomputedBefore(*bucket, stage.buckets), i);
        BackwardBucket(*bucket, i, pass.kind);
      }
    }
  }

  void Load(int i) {
    Instruction& load = Emit(Op::kLoad, {}, i, Lane::kUp);
    ReadStateFirst(load, Lane::kUp);
    load.writes = {Key(BufferKind::kTokens, -1, i)};
  }

  void Move(const Transfer& transfer) {
    const BufferKey key = Key(transfer.gradient ? BufferKind::kBoundaryGradient : BufferKind::kBoundary, transfer.unit,
                              transfer.micro_batch);
    Instruction& move = Emit(transfer.sends ? Op::kSend : Op::kRecv, {transfer.unit, transfer.unit},
                             transfer.micro_batch, Lane::kPp, Group::kPp);
    move.peer = transfer.peer;
    move.post = transfer.post;
    if (transfer.sends) {
      move.reads = {key};
      move.frees = {key};
    } else {
      ReadStateFirst(move, Lane::kPp);
      move.writes = {key};
    }
    FreeAtTheEndOfThePost();
  }

  // The transfers of a post run at once: what one of them sent ends when all of them have.
  void FreeAtTheEndOfThePost() {
    if (program_.instructions.size() < 2) return;
    Instruction &last = program_.instructions.back(), &before = *(program_.instructions.end() - 2);
    if (before.lane != Lane::kPp || before.post != last.post) return;
    last.frees.insert(last.frees.end(), before.frees.begin(), before.frees.end());
    before.frees.clear();
  }

  void ReadStateFirst(Instruction& instruction, Lane lane) {
    bool& seen = reads_state_[static_cast<size_t>(lane)];
    if (!std::exchange(seen, true)) instruction.reads = {kState};
  }

  // The last StepStats comes after all that uses the arena (make_program.h).
  void GuardArena() {
    bool transfers = false, computes = train_;
    for (auto it = program_.instructions.rbegin(); it != program_.instructions.rend() && !(transfers && computes);
         ++it) {
      bool& seen = it->lane == Lane::kPp ? transfers : computes;
      if ((it->lane != Lane::kPp && it->lane != Lane::kCompute) || seen) continue;
      seen = true;
      const bool uses = std::ranges::find(it->reads, kState) != it->reads.end() ||
                        std::ranges::find(it->adds, kState) != it->adds.end();
      if (!uses) it->reads.push_back(kState);
    }
  }

  // ---- Units.

  void Forward(int unit, int i) {
    Instruction& forward = Emit(Op::kForward, {unit, unit}, i, Lane::kCompute);
    forward.reads = {Weights(unit, i, kForwardSlot)};
    if (unit == 0) {
      const BufferKey tokens = Key(BufferKind::kTokens, -1, i);
      forward.reads.push_back(tokens);
      forward.writes = {Key(BufferKind::kBoundary, 0, i)};
      if (!train_ && !HasHead(stages_.front().units)) forward.frees = {tokens};
    } else if (unit == head_) {
      HeadForward(forward, i);
    } else {
      const BufferKey input = Key(BufferKind::kBoundary, unit - 1, i);
      forward.reads.push_back(input);
      forward.writes = {Key(BufferKind::kBoundary, unit, i)};
      if (!train_ || (Recomputes(unit) && SegmentOf(unit).first < unit)) forward.frees.push_back(input);
    }
    if (!Saves(unit)) return;
    const bool keeps = train_ && !Recomputes(unit);
    const BufferKey saved = Key(BufferKind::kSaved, unit, i, keeps ? kKeptSlot : kScratchSlot);
    forward.writes.push_back(saved);
    if (!keeps) forward.frees.push_back(saved);
    if (PutsInputAway(unit)) PutAway(unit - 1, i);
  }

  // A boundary that the backward pass starts a recomputation with.
  void PutAway(int unit, int i) {
    const BufferKey whole = Key(BufferKind::kBoundary, unit, i), part = Key(BufferKind::kBoundaryPart, unit, i);
    if (plan_.partition_boundaries) Relocate(Emit(Op::kTpSplit, {unit, unit}, i, Lane::kCompute), whole, part);
    if (!plan_.boundaries_on_host) return;
    Relocate(Emit(Op::kCopyDown, {unit, unit}, i, Lane::kDown), plan_.partition_boundaries ? part : whole,
             Key(BufferKind::kHostBoundary, unit, i));
  }

  void CopyBoundaryUp(int unit, int i) {
    const BufferKind kind = plan_.partition_boundaries ? BufferKind::kBoundaryPart : BufferKind::kBoundary;
    last_up_ = Key(kind, unit, i, kBroughtBackSlot);
    Instruction& copy = Emit(Op::kCopyUp, {unit, unit}, i, Lane::kUp);
    ReadStateFirst(copy, Lane::kUp);
    Relocate(copy, Key(BufferKind::kHostBoundary, unit, i), last_up_);
  }

  // The next one that this pass will need is on its way meanwhile.
  void BringBack(int unit, int i) {
    const bool host = plan_.boundaries_on_host;
    if (host && (last_up_.unit != unit || last_up_.micro_batch != i)) CopyBoundaryUp(unit, i);
    if (plan_.partition_boundaries) {
      Relocate(Emit(Op::kTpGather, {unit, unit}, i, Lane::kCompute, Group::kTp),
               Key(BufferKind::kBoundaryPart, unit, i, host ? kBroughtBackSlot : 0),
               Key(BufferKind::kBoundary, unit, i, kBroughtBackSlot));
    }
    if (!host) return;
    const int first = plan_.stages[static_cast<size_t>(plan_.StageOf(unit + 1))].first;
    for (int next = unit; next >= std::max(first, 1); --next) {
      if (PutsInputAway(next)) return CopyBoundaryUp(next - 1, i);
    }
  }

  static void Relocate(Instruction& instruction, const BufferKey& from, const BufferKey& to) {
    instruction.reads.push_back(from);
    instruction.writes.push_back(to);
    instruction.frees.push_back(from);
  }

  void HeadForward(Instruction& forward, int i) const {
    const BufferKey tokens = Key(BufferKind::kTokens, -1, i), input = Key(BufferKind::kBoundary, head_ - 1, i);
    if (Tied()) forward.reads.push_back(Weights(0, i, tied_slot_));
    forward.reads.push_back(input);
    forward.reads.push_back(tokens);
    forward.frees = {input};
    if (train_) {
      forward.writes = {Key(BufferKind::kBoundaryGradient, head_ - 1, i)};
      forward.adds = {Gradient(head_, i)};
      if (Tied()) forward.adds.push_back(Gradient(0, i));
    }
    // The embedding's Backward reads the tokens once more, where it is on this rank.
    if (!train_ || !HasEmbedding(stages_.front().units)) forward.frees.push_back(tokens);
    forward.adds.push_back(kState);
  }

  // Of units of one segment.
  void Recomputation(UnitRange units, int i, int slot) {
    for (int unit = units.first; unit <= units.last; ++unit) {
      if (PutsInputAway(unit)) BringBack(unit - 1, i);
      Instruction& recompute = Emit(Op::kRecompute, {unit, unit}, i, Lane::kCompute);
      recompute.reads = {Weights(unit, i, slot), unit == 0 ? Key(BufferKind::kTokens, -1, i) : InputOf(unit, i)};
      recompute.writes = {Key(BufferKind::kSaved, unit, i, kKeptSlot)};
      if (unit < SegmentOf(unit).last) recompute.writes.push_back(InputOf(unit + 1, i));
    }
  }

  void EmbeddingBackward(int i, int slot) {
    Instruction& backward = Emit(Op::kBackward, {0, 0}, i, Lane::kCompute);
    backward.reads = {Key(BufferKind::kTokens, -1, i), Key(BufferKind::kBoundaryGradient, 0, i)};
    if (Saves(0)) backward.reads.push_back(Key(BufferKind::kSaved, 0, i, kKeptSlot));
    backward.frees = backward.reads;
    if (Saves(0)) backward.reads.push_back(Weights(0, i, slot));
    backward.adds = {Gradient(0, i)};
  }

  // Of a block; `deferred`: the weight gradients come later.
  void Backward(int unit, int i, int slot, bool deferred) {
    Instruction& backward = Emit(deferred ? Op::kBackwardInput : Op::kBackward, {unit, unit}, i, Lane::kCompute);
    const BufferKey output_gradient = Key(BufferKind::kBoundaryGradient, unit, i),
                    saved = Key(BufferKind::kSaved, unit, i, kKeptSlot), input = InputOf(unit, i);
    backward.reads = {Weights(unit, i, slot), saved, input, output_gradient};
    backward.writes = {Key(BufferKind::kBoundaryGradient, unit - 1, i)};
    backward.adds = {Gradient(unit, i)};
    if (deferred) {
      backward.writes.push_back(Key(BufferKind::kDeferred, unit, i));
      backward.frees = {output_gradient};
    } else {
      backward.frees = {saved, input, output_gradient};
    }
  }

  void BackwardWeight(int unit, int i) {
    Instruction& backward = Emit(Op::kBackwardWeight, {unit, unit}, i, Lane::kCompute);
    backward.reads = {Key(BufferKind::kSaved, unit, i, kKeptSlot), InputOf(unit, i),
                      Key(BufferKind::kDeferred, unit, i)};
    backward.frees = backward.reads;
    backward.adds = {Gradient(unit, i)};
  }

  // ---- Buckets.

  // At ZeRO 3 the head's bucket stays gathered where its Backward comes next.
  bool KeepsGathered(const UnitRange& bucket) const {
    if (!train_ || !HasHead(bucket) || passes_done_ + 1 >= passes_.size()) return false;
    const Pass &now = passes_[passes_done_], &next = passes_[passes_done_ + 1];
    return next.kind != Pass::Kind::kForward && next.chunk == now.chunk && next.micro_batch == now.micro_batch;
  }

  void ForwardBucket(const UnitRange& bucket, int i) {
    if (sharded_) GatherUpToNextPhase();
    tied_slot_ = GathersTied(bucket) ? kTiedSlot : kForwardSlot;
    for (int unit = bucket.first; unit <= bucket.last; ++unit) Forward(unit, i);
    if (!sharded_) return;
    kept_ = KeepsGathered(bucket);
    if (!train_ && HasHead(bucket)) {
      // StepStats follows the head's Forward, and what uses the arena next follows StepStats.
      std::vector<BufferKey>& frees = program_.instructions.back().frees;
      for (int unit = bucket.first; unit <= bucket.last; ++unit) frees.push_back(Weights(unit, i, kForwardSlot));
      if (GathersTied(bucket)) frees.push_back(Weights(0, i, kTiedSlot));
      return;
    }
    if (!kept_) {
      Release(bucket, i, kForwardSlot);
    } else {  // but for what the backward pass does not read
      Release({head_, head_}, i, kForwardSlot);
      if (bucket.first == 0 && !Saves(0)) Release({0, 0}, i, kForwardSlot);
    }
    if (GathersTied(bucket)) Release({0, 0}, i, kTiedSlot);
  }

  // ZeRO 3: the buckets before this one that belong to a segment which ends in it. A segment of several units begins
  // with a bucket.
  std::vector<UnitRange> RecomputedBefore(const UnitRange& bucket, const std::vector<UnitRange>& buckets) const {
    std::vector<UnitRange> before;
    for (int unit = bucket.first; sharded_ && unit <= bucket.last; ++unit) {
      const UnitRange& segment = SegmentOf(unit);
      if (!Recomputes(unit) || segment.last != unit || segment.first >= bucket.first) continue;
      for (const UnitRange& other : buckets) {
        if (other.first >= segment.first && other.last < bucket.first) before.push_back(other);
      }
    }
    return before;
  }

  void RecomputeBuckets(const std::vector<UnitRange>& buckets, int i) {
    for (const UnitRange& bucket : buckets) {
      GatherUpToNextPhase();
      Recomputation(bucket, i, kRecomputeSlot);
      Release(bucket, i, kRecomputeSlot);
    }
  }

  void BackwardBucket(const UnitRange& bucket, int i, Pass::Kind kind) {
    const bool gathered = sharded_ && kept_ && HasHead(bucket), deferred = kind == Pass::Kind::kBackwardInput;
    const int slot = gathered ? kForwardSlot : kBackwardSlot;
    if (sharded_ && !gathered) GatherUpToNextPhase();
    for (int unit = std::min(bucket.last, head_ - 1); unit >= bucket.first; --unit) {
      if (Recomputes(unit) && SegmentOf(unit).last == unit) {
        const int first = SegmentOf(unit).first;
        Recomputation({sharded_ ? std::max(first, bucket.first) : first, unit}, i, slot);
      }
      if (unit == 0) {
        EmbeddingBackward(i, slot);
      } else {
        Backward(unit, i, slot, deferred);
      }
    }
    if (sharded_) Release(WithBackwardWeights(bucket), i, slot);
    if (!deferred) Reduce(bucket, i);
  }

  void BackwardWeightBucket(const UnitRange& bucket, int i) {
    for (int unit = std::min(bucket.last, head_ - 1); unit >= std::max(bucket.first, 1); --unit)
      BackwardWeight(unit, i);
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

  // Phases of a ZeRO 3 program in order of use: each bucket's forward and, where it is not kept, its backward.
  void PlanGathers() {
    bool kept = false;
    for (passes_done_ = 0; passes_done_ < passes_.size(); ++passes_done_) {
      const Pass& pass = passes_[passes_done_];
      const std::vector<UnitRange>& buckets = stages_[static_cast<size_t>(pass.chunk)].buckets;
      const int i = pass.micro_batch;
      if (pass.kind == Pass::Kind::kForward) {
        for (const UnitRange& bucket : buckets) {
          phases_.push_back({{bucket, i, kForwardSlot}});
          if (GathersTied(bucket)) phases_.back().push_back({{0, 0}, i, kTiedSlot});
        }
        kept = KeepsGathered(buckets.back());
      } else if (pass.kind != Pass::Kind::kBackwardWeight) {
        for (auto bucket = buckets.rbegin(); bucket != buckets.rend(); ++bucket) {
          for (const UnitRange& before : RecomputedBefore(*bucket, buckets)) {
            phases_.push_back({{before, i, kRecomputeSlot}});
          }
          if (kept && HasHead(*bucket)) continue;
          phases_.emplace_back();
          const UnitRange units = WithBackwardWeights(*bucket);
          if (units.first <= units.last) phases_.back().push_back({units, i, kBackwardSlot});
        }
      }
    }
    passes_done_ = 0;
  }

  // Issues the gathers of the phase that begins now, if they are not yet, and of the next one.
  void GatherUpToNextPhase() {
    ++begun_phases_;
    for (; gathered_phases_ < std::min(begun_phases_ + 1, phases_.size()); ++gathered_phases_) {
      for (const PlannedGather& planned : phases_[gathered_phases_]) {
        if (plan_.weights_on_host) ShardsUp(planned);
        if (plan_.topology.dp_size > 1) Gather(planned);
      }
    }
  }

  void Gather(const PlannedGather& planned) {
    Instruction& gather = Emit(Op::kGather, planned.units, planned.micro_batch, Lane::kDp, Group::kDp);
    for (int unit = planned.units.first; unit <= planned.units.last; ++unit) {
      const BufferKey shard = Key(BufferKind::kShard, unit, planned.micro_batch, planned.slot);
      gather.reads.push_back(plan_.weights_on_host ? shard : Key(BufferKind::kWeights, unit));
      gather.writes.push_back(Key(BufferKind::kGathered, unit, planned.micro_batch, planned.slot));
      if (plan_.weights_on_host) gather.frees.push_back(shard);
    }
  }

  // Of one data-parallel rank: what it owns is all there is to gather.
  void ShardsUp(const PlannedGather& planned) {
    const BufferKind kind = plan_.topology.dp_size > 1 ? BufferKind::kShard : BufferKind::kGathered;
    Instruction& copy = Emit(Op::kCopyUp, planned.units, planned.micro_batch, Lane::kUp);
    ReadStateFirst(copy, Lane::kUp);
    for (int unit = planned.units.first; unit <= planned.units.last; ++unit) {
      copy.reads.push_back(Key(BufferKind::kWeights, unit));
      copy.writes.push_back(Key(kind, unit, planned.micro_batch, planned.slot));
    }
  }

  void Reduce(const UnitRange& bucket, int i) {
    if (!reduces_each_micro_batch_ && i + 1 < num_micro_batches_) return;
    if (plan_.sequence_parallel) TpReduce(bucket, i);
    if (plan_.topology.dp_size > 1) DpReduce(bucket, i);
    // What TieReduce sums once more goes down after it.
    const bool waits_for_tie = bucket.first == 0 && plan_.tied_across_stages();
    if (i + 1 == num_micro_batches_ && !waits_for_tie) GradientsDown(plan_, bucket, program_);
  }

  void DpReduce(const UnitRange& bucket, int i) {
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

  // On the compute lane: its collectives are small, and share a communicator with those inside the units.
  void TpReduce(const UnitRange& bucket, int i) {
    Instruction& reduce = Emit(Op::kTpReduce, bucket, reduces_each_micro_batch_ ? i : -1, Lane::kCompute, Group::kTp);
    for (int unit = bucket.first; unit <= bucket.last; ++unit) reduce.reads.push_back(Gradient(unit, i));
    reduce.writes = reduce.reads;
  }

  const Plan& plan_;
  const bool train_, sharded_, reduces_each_micro_batch_;
  const int pp_rank_, head_, num_micro_batches_;
  const std::vector<PipelineEvent> events_;
  std::vector<Pass> passes_;   // of events_
  std::vector<Stage> stages_;  // by chunk
  size_t passes_done_ = 0;
  int tied_slot_ = 0;  // where the head finds the tied weight
  bool kept_ = false;  // the head's bucket is still gathered
  BufferKey last_up_;  // the boundary that was brought back last
  std::array<bool, kNumLanes> reads_state_{};
  std::vector<std::vector<PlannedGather>> phases_;
  size_t begun_phases_ = 0, gathered_phases_ = 0;
  Program program_;
};

}  // namespace

Program MakeProgram(const Plan& plan, ProgramKind kind, int rank) {
  TRIREME_CHECK(plan.num_units() >= 2 && !plan.buckets.empty() && !plan.stages.empty(),
                "a plan has an embedding, a head, stages and buckets");
  return ProgramBuilder(plan, kind, rank).Build();
}

}  // namespace trireme
