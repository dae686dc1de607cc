// The steps of MakePlan, one file each. Private to this room.
#pragma once
#include <vector>

#include "engine/plan/plan.h"

namespace trireme::plan_parts {

Topology MakeTopology(const Config& config, int64_t world_size);                                   // topology.cpp
BatchPlan MakeBatchPlan(const Config& config, const Topology& topology, int64_t sequence_length);  // batch_plan.cpp
UnitLayout LayOutUnit(UnitSpec spec, int dp_size);                                                 // shard_layout.cpp
std::vector<UnitRange> MakeBuckets(const std::vector<UnitLayout>& units, const ZeroConfig& zero,
                                   int zero_stage);  // bucket_plan.cpp

}  // namespace trireme::plan_parts
