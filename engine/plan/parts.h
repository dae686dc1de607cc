// The steps of MakePlan, one file each. Private to this room.
#pragma once
#include <vector>

#include "engine/plan/plan.h"

namespace trireme::plan_parts {

Topology MakeTopology(const Config& config, int64_t world_size);                                   // topology.cpp
BatchPlan MakeBatchPlan(const Config& config, const Topology& topology, int64_t sequence_length);  // batch_plan.cpp
UnitLayout LayOutUnit(UnitSpec spec, int dp_size);                                                 // shard_layout.cpp
// stage_plan.cpp. The two methods give the first item of each part.
std::vector<int> UniformParts(int items, int parts);
std::vector<int> BalancedParts(const std::vector<double>& weights, int parts);
std::vector<UnitRange> MakeStages(const std::vector<UnitLayout>& units, const PipelineParallelConfig& pipeline);
// No bucket crosses a stage, nor, at ZeRO 3, the beginning of a segment of several units. bucket_plan.cpp
std::vector<UnitRange> MakeBuckets(const std::vector<UnitLayout>& units, const std::vector<UnitRange>& stages,
                                   const ZeroConfig& zero, int zero_stage);
// recompute_plan.cpp: each unit's policy and segment, and what its spec then says; after the stages, before the
// buckets.
void AssignRecompute(const RecomputeConfig& config, Recompute everywhere, Plan& plan);

}  // namespace trireme::plan_parts
