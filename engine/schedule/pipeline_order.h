// In which order the ranks of a pipeline work on micro-batches: the compute passes alone. What these need (transfers,
// gathers, reductions) is added by the program's builder.
//   std::vector<Pass> passes = TrainPasses({.pp_size = 4, .num_micro_batches = 8}, pp_rank);
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/plan/plan.h"

namespace trireme {

// PipelineSchedule (parsers/config.h):
// - kGPipe: all forwards, then all backwards (arXiv:1811.06965); a reference, its memory grows with the micro-batches;
// - kOneForwardOneBackward: 1F1B (arXiv:2006.09503; DeepSpeed's TrainSchedule), with chunks > 1 interleaved
//   (arXiv:2104.04473);
// - kZeroBubble: ZB-H1 (arXiv:2401.10241), 1F1B whose weight gradients fill the bubble.
std::string_view Name(PipelineSchedule schedule);

// One stage's work on one micro-batch. kBackward makes both gradients; the pair after it is kZeroBubble's.
struct Pass {
  enum class Kind : uint8_t { kForward, kBackward, kBackwardInput, kBackwardWeight };
  Kind kind = Kind::kForward;
  int chunk = 0;        // virtual stage of this rank: stage chunk * pp_size + pp_rank of the model
  int micro_batch = 0;  // 0 .. m - 1
  bool operator==(const Pass&) const = default;
};

struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int pp_size = 1;
  int chunks = 1;  // virtual stages of a rank
  int num_micro_batches = 1;
};

// All passes of one training step on one rank. Each chunk's backwards come in the order of micro-batches, as without a
// pipeline, so that sums of gradients are rounded alike. kGPipe and kZeroBubble know one chunk (TRIREME_CHECK); the
// plan refuses what does not fit: see CheckPipeline of engine/plan.
std::vector<Pass> TrainPasses(const PipelineShape& shape, int pp_rank);
// The forwards alone.
std::vector<Pass> EvalPasses(const PipelineShape& shape, int pp_rank);

}  // namespace trireme
