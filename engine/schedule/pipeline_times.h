// When the passes of a pipeline happen if transfers take no time: it gives all ranks one common order of transfers, and
// bubbles to compare with formulas.
//   PipelineTimes times = TimePasses(shape, passes_of_ranks, seconds);
#pragma once
#include <functional>
#include <vector>

#include "engine/schedule/pipeline_order.h"

namespace trireme {

struct PassTime {
  double start = 0, end = 0;
};

// `stage`: of the model, 0 .. pp_size * chunks - 1. Any unit, greater than 0.
using PassSeconds = std::function<double(int stage, Pass::Kind kind)>;

// Times of passes[rank][k], parallel to `passes`. Each rank works through its list in order and idles only while a pass
// waits for another stage: Forward for the stage below, Backward and BackwardInput for the stage above (the last
// stage's for its own Forward). Throws Error{kInternal} (TRIREME_CHECK) if the lists deadlock.
std::vector<std::vector<PassTime>> TimePasses(const PipelineShape& shape, const std::vector<std::vector<Pass>>& passes,
                                              const PassSeconds& seconds);

// Idle share of the ranks' time from the first start to the last end.
double Bubble(const std::vector<std::vector<PassTime>>& times);

}  // namespace trireme
