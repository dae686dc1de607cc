// Single changes of a layout that would make it fit: what a "does not fit", before a run or in its middle, proposes.
//   for (const Change& change : CheapestChanges(job, options, 8, &cluster, 2)) ... change.what, WithFlags(change)
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/advise/fill.h"
#include "engine/advise/layout.h"
#include "parsers/cluster.h"

namespace trireme {

struct Change {
  std::string what;  // "train_micro_batch_size_per_gpu 4 -> 2 (accumulation 16)"
  // Keys of the config with their new values, as `plan --with KEY=VALUE...` takes them.
  std::vector<std::pair<std::string, std::string>> keys;
  Config config;
  Plan plan;                         // with its memory, which is within the limit
  int64_t needed_bytes = 0;          // of that limit
  std::optional<double> step_ratio;  // predicted step over that of the layout as it is; without a cluster unknown
};

// The `wanted` cheapest of the job's own config that fit: a smaller micro-batch (the largest that does), recomputation
// (of as few layers as it takes), sequence parallelism, a higher ZeRO stage, offloading of the optimizer (of as few
// units as it takes at stage 3) or of the weights, more tensor-parallel ranks inside a node of `ranks_per_node`, more
// pipeline ranks. By predicted step with a cluster; else in the order above, which is about that of their cost. Empty:
// none does.
std::vector<Change> CheapestChanges(const Job& job, const FillOptions& options, int64_t ranks_per_node,
                                    const Cluster* cluster, size_t wanted);

// "--with zero_optimization.stage=2": for a shell.
std::string WithFlags(const Change& change);

}  // namespace trireme
