#include "engine/schedule/pipeline_order.h"

#include <algorithm>

#include "engine/base/error.h"

namespace trireme {
namespace {

using Kind = Pass::Kind;

// Forwards in the order in which a rank does them: groups of pp_size micro-batches go through chunk after chunk. The
// last group may be smaller.
std::vector<Pass> ForwardTable(const PipelineShape& shape) {
  std::vector<Pass> table;
  const int group = shape.chunks > 1 ? shape.pp_size : shape.num_micro_batches;
  for (int first = 0; first < shape.num_micro_batches; first += group) {
    const int end = std::min(first + group, shape.num_micro_batches);
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int i = first; i < end; ++i) table.push_back({Kind::kForward, chunk, i});
    }
  }
  return table;
}

// The same with the last chunk first.
std::vector<Pass> BackwardTable(const PipelineShape& shape) {
  std::vector<Pass> table = ForwardTable(shape);
  for (Pass& pass : table) {
    pass.kind = Kind::kBackward;
    pass.chunk = shape.chunks - 1 - pass.chunk;
  }
  return table;
}

int WarmUpForwards(const PipelineShape& shape, int pp_rank) {
  const int all = shape.num_micro_batches * shape.chunks;
  if (shape.schedule == PipelineSchedule::kGPipe) return all;
  const int behind = shape.pp_size - 1 - pp_rank;
  const int warm_up = shape.chunks > 1 ? 2 * behind + (shape.chunks - 1) * shape.pp_size : behind;
  return std::min(warm_up, all);
}

std::vector<Pass> OneForwardOneBackward(const PipelineShape& shape, int pp_rank) {
  const std::vector<Pass> forwards = ForwardTable(shape), backwards = BackwardTable(shape);
  const size_t warm_up = static_cast<size_t>(WarmUpForwards(shape, pp_rank));
  std::vector<Pass> passes(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(warm_up));
  for (size_t i = warm_up; i < forwards.size(); ++i) {
    passes.push_back(forwards[i]);
    passes.push_back(backwards[i - warm_up]);
  }
  passes.insert(passes.end(), backwards.end() - static_cast<std::ptrdiff_t>(warm_up), backwards.end());
  return passes;
}

// At most pp_rank weight gradients are put off: so no rank keeps more than pp_size micro-batches alive.
std::vector<Pass> ZeroBubble(const PipelineShape& shape, int pp_rank) {
  std::vector<Pass> passes;
  int made = 0, next_weight = 0;
  for (Pass pass : OneForwardOneBackward(shape, pp_rank)) {
    if (pass.kind == Kind::kBackward) {
      pass.kind = Kind::kBackwardInput;
      ++made;
    }
    passes.push_back(pass);
    if (made - next_weight > pp_rank) passes.push_back({Kind::kBackwardWeight, 0, next_weight++});
  }
  while (next_weight < made) passes.push_back({Kind::kBackwardWeight, 0, next_weight++});
  return passes;
}

void Check(const PipelineShape& shape, int pp_rank) {
  TRIREME_CHECK(shape.pp_size >= 1 && pp_rank >= 0 && pp_rank < shape.pp_size, "a rank of the pipeline");
  TRIREME_CHECK(shape.chunks >= 1 && shape.num_micro_batches >= 1, "at least one chunk and one micro-batch");
  TRIREME_CHECK(shape.chunks == 1 || shape.schedule == PipelineSchedule::kOneForwardOneBackward,
                "only 1F1B interleaves chunks");
}

}  // namespace

std::string_view Name(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kGPipe:
      return "gpipe";
    case PipelineSchedule::kOneForwardOneBackward:
      return "1f1b";
    case PipelineSchedule::kZeroBubble:
      return "zero-bubble";
  }
  return "?";
}

std::vector<Pass> TrainPasses(const PipelineShape& shape, int pp_rank) {
  Check(shape, pp_rank);
  return shape.schedule == PipelineSchedule::kZeroBubble ? ZeroBubble(shape, pp_rank)
                                                         : OneForwardOneBackward(shape, pp_rank);
}

std::vector<Pass> EvalPasses(const PipelineShape& shape, int pp_rank) {
  Check(shape, pp_rank);
  return ForwardTable(shape);
}

}  // namespace trireme
