// Which layouts of a job fit a cluster's devices, and which of them is fastest.
//   Advice advice = Suggest({job, cluster, ranks_per_node, limit_bytes});  advice.best.front().config
// Pure, no device.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/advise/fill.h"
#include "engine/advise/layout.h"
#include "engine/schedule/predict.h"
#include "parsers/cluster.h"

namespace trireme {

struct AdviceRequest {
  Job job;  // its config is the user's
  Cluster cluster;
  int64_t ranks_per_node = 1;
  FillOptions fill;
  size_t wanted = 5;  // layouts in the answer
  // How much is predicted and filled before the search ends with the best that it has, in passes of units in the
  // Programs that are made. A 13B on 16 devices takes 127,000, in 1.2 s of one core of a 2-core machine; 400,000 end
  // the search for a 70B on 64 devices after 10 to 25 s.
  int64_t most_work = 400'000;
  // Whether a config may be suggested: what else a file says may not go with every layout. Empty: all may.
  std::function<bool(const Config&)> allowed = {};
};

// A layout that fits, filled.
struct Suggestion {
  Layout layout;
  Config config;
  Plan plan;
  Prediction prediction;     // without its timelines
  int64_t needed_bytes = 0;  // of the limit
  double step_seconds() const { return prediction.step_seconds; }
};

struct Advice {
  std::vector<Suggestion> best;  // the fastest first
  // What was looked at: grids of ranks left out because a tensor-parallel group would span nodes; layouts that are
  // legal; of them those whose states do not fit unless some are offloaded, those that cannot fit at all, and those
  // whose parts alone take longer than the last of `best`.
  int64_t across_nodes = 0, legal = 0, states_too_large = 0, too_large = 0, slower = 0;
  int64_t not_looked_at = 0;  // layouts that could be faster, when most_work was done
  int64_t work = 0;
};

// Every legal layout (layout.h) is bounded from below: its units' seconds on the cluster, bubble included; then its
// predicted step with everything kept. Only where the bound is below what is known to fit is it filled and predicted,
// so that the ranking is that of all of them, unless most_work is done before.
Advice Suggest(const AdviceRequest& request);

// The fastest way to make one layout fit: least recomputation, or where that is predicted to take less offloading
// instead of it, to the host's memory or to a disk that the config names a folder of (at ZeRO 3, and on one
// data-parallel rank, whose stage says nothing else, of half or a quarter of the units too). nullopt: it cannot fit, or
// be.
std::optional<Suggestion> FastestFill(const AdviceRequest& request, const Config& config);

// Four lines, in this order: memory, topology, communication, throughput.
std::vector<std::string> Reasons(const AdviceRequest& request, const Advice& advice, const Suggestion& of);

}  // namespace trireme
