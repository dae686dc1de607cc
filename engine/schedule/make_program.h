// The program of one rank: pipeline passes and transfers (pipeline_events.h) filled with the units' instructions, and
// with what the ZeRO stage needs (arXiv:1910.02054).
//   Program program = MakeProgram(plan, ProgramKind::kTrain, rank);
#pragma once
#include "engine/schedule/instruction.h"

namespace trireme {

// Ranks that differ in their dp rank alone get the same instructions.
//
// - ZeRO 0, 1: gradients add up in kGradientSum (whole). Reduce of a bucket follows its last Backward (its last
//   BackwardWeight), in place: all-reduce at 0, reduce-scatter to the own shard at 1. Where the communication type
//   differs: through kStaging slot 1 (whole). ZeRO 2, 3: Reduce of a bucket in each micro-batch: kGradient (whole),
//   [kStaging slot 1 (whole),] reduce-scatter to kStaging slot 0 (shard), added to kGradientSum (shard). One rank
//   has no Reduce: what it owns is the whole.
// - A tied weight whose copies lie on two stages: both ranks hold unit 0, reduce it over dp like any other, and then
//   TieReduce sums what each rank owns of it. Both copies get the same update.
// - StepStats is two instructions: lane compute (own sums), lane dp, group world (all-reduce, norm, clip factor). In
//   evaluation only the second, on the evaluation's slots.
// - ZeRO 1, 2: Update and Gather (in place) bucket by bucket, so that each gather runs under the next update and a
//   unit's next Forward waits for its own weights only.
// - ZeRO 3: Gather of the next bucket is issued before the units of this one run. The head's bucket is kept where its
//   Backward comes next; the embedding has no gather in backward, a tied head its own one of unit 0 (slot 2) unless
//   both are in one bucket.
// - offload_optimizer: as soon as a bucket's own gradient is complete CopyDown brings it to the host, under the rest of
//   the backward pass. StepState follows; then Update on lane cpu and CopyUp, bucket by bucket. The norm is made of
//   what lies on the device.
// - offload_param: CopyUp (to kShard) before each Gather; with one data-parallel rank CopyUp makes kGathered itself. An
//   update on the host writes what CopyUp reads; one on the device leaves kShard for a CopyDown.
// - Recompute::kFull: a block's Forward writes and frees kSaved slot 1; its Recompute writes slot 0. The Recomputes of
// a
//   segment stand before the Backward of its last unit, and only the first one's input was kept: the others' come again
//   in kBoundary slot 1, and the last has no output. At ZeRO 3 units of earlier buckets are gathered for it (kGathered
//   slot 3). In evaluation blocks write and free kSaved slot 1 too, so that a unit needs no scratch for it.
// - partition_boundaries: TpSplit puts the own part of a segment's input in the place of the whole once its Forward is
//   done, TpGather makes the whole (kBoundary slot 1) before its Recompute.
// - boundaries_on_host: CopyDown takes it, or the part, to the host, CopyUp brings it back (slot 1) while the segment
//   after it is at work; the first of a pass comes when it is needed.
// - Two Programs share the arena. The first Load and the first Recv read StepState, and everything on compute follows
//   one of them; the last transfer (and in evaluation the last pass) reads it too, so that the last StepStats, which
//   writes it, follows every use of the arena.
Program MakeProgram(const Plan& plan, ProgramKind kind, int rank);

}  // namespace trireme
