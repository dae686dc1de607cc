// Bounds of a layout that need no Program. Private to this room.
#pragma once
#include <cstdint>

#include "engine/plan/plan.h"
#include "parsers/cluster.h"

namespace trireme {

// A step is predicted to take at least as long: units alone on their ranks, nothing made again, and the bubble.
double LeastSeconds(const Plan& plan, const Cluster& cluster);

// The same of a plan that has to fit: with the least that its layers must make again so that what they keep leaves room
// in `limit_bytes` for the rest (LeastBytes). `cheap` and `full` are the plan with every layer made again so. Infinity:
// it cannot fit.
double LeastSecondsThatFit(const Plan& kept, const Plan& cheap, const Plan& full, const Cluster& cluster,
                           int64_t limit_bytes, bool offloaded);

// The fullest rank takes at least as much: what is persistent, the workspace, and the inputs of its layers in flight.
// `offloaded`: with all of the optimizer's states on the host.
int64_t LeastBytes(const Plan& plan, bool offloaded);

}  // namespace trireme
