// "trireme": {"fill": true}: what each unit keeps, makes once more or offloads, chosen for the memory that ranks have.
//   config = FillLayout(config, model, inputs, {.limit_bytes = watch.PlannableBytes()}, world);
#pragma once
#include "engine/advise/fill.h"
#include "engine/trainer/rank_world.h"

namespace trireme {

// Collective. Every rank goes by the smallest limit of all, so that all take the same decision; rank 0 says what it is.
// Where nothing fits: the layout that takes least, with a warning (the check of memory comes after).
Config FillLayout(const Config& config, const ModelSpec& model, const PlanInputs& inputs, FillOptions options,
                  RankWorld& world);

}  // namespace trireme
