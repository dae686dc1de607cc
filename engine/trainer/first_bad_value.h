// Where a step that was skipped went wrong: the same samples once more on all ranks, with a look at every tensor.
#pragma once
#include <string>

#include "engine/execute/executor.h"
#include "engine/model/own_modules.h"
#include "engine/trainer/rank_world.h"

namespace trireme {

// "first bad value: NaN in the output of transformer.h.1 (element 0), forward of micro-batch 1 on rank 3 (pp 0, dp 1,
// tp 1)": the first of all ranks in the order of execution, the same text on each of them. All ranks call it together,
// after a result with `held`, and Executor::Release after it. Weights, moments, counters, data position and buffers of
// own modules are afterwards what they were.
std::string FirstBadValue(Executor& executor, const Plan& plan, RankWorld& world, const OwnModules& modules,
                          const StepInputs& inputs, double loss_scale);

}  // namespace trireme
