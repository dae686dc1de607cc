// By how much a real step is longer than its products, attention and passes over memory: fitted from a short training
// run of a small GPT.
#pragma once
#include "engine/calibrate/compute.h"

namespace trireme::calibrate {

// Every rank trains one of its own, beside the others: on the CPU they share the device, `sharing` of them. Fills the
// device's engine_factor, out of what `cluster` has without it.
void FitEngineFactor(const Stopwatch& watch, const Sizes& sizes, int64_t sharing, Cluster& cluster, Figures& figures);

}  // namespace trireme::calibrate
