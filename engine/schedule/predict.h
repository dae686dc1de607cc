// What a step of a plan will take on a cluster: the Programs that `train` executes, on the clock of simulate.h, with
// the durations of cost_model.h.
//   Prediction p = Predict(plan, FindCluster("a100-pcie-hdr"));  p.step_seconds, p.tokens_per_second, ...
// Pure. Costs milliseconds: ranks that differ in their dp or tp rank alone are one, and of many micro-batches a few are
// simulated and the rest follows from them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/schedule/compile.h"
#include "engine/schedule/simulate.h"
#include "parsers/cluster.h"

namespace trireme {

// Seconds of a step in which lane compute waits for, or makes, communication; the mean of the pipeline ranks.
struct ExposedSeconds {
  double gather = 0;           // weights (ZeRO)
  double reduce = 0;           // gradients, and the sums at the end of a step
  double tensor_parallel = 0;  // inside the units
  double transfer = 0;         // between pipeline ranks; waiting for their passes is bubble
  double total() const { return gather + reduce + tensor_parallel + transfer; }
};

struct MemoryPoint {
  double seconds = 0;
  int64_t bytes = 0;  // from here on
};

// One pipeline rank (dp and tp rank 0) in one step of `simulated_micro_batches`.
struct RankPrediction {
  CompiledProgram program;                // what the times below are of
  std::vector<InstructionTime> timeline;  // by instruction id; seconds from the beginning of the step
  std::vector<MemoryPoint> memory;        // device: persistent buffers and live ones of the arena, in order of time
  double busy_seconds = 0;                // lane compute
  std::array<double, kNumWaitKinds> wait_seconds{};
};

struct Prediction {
  double step_seconds = 0;
  double tokens_per_second = 0;  // of all ranks
  double tokens_per_second_per_rank = 0;
  // Model FLOPs utilisation: products and attention of forward and backward, without what is made again, over the
  // device's peak. `full` counts the whole square of attention (PaLM), `causal` the half that is computed.
  double mfu_full = 0, mfu_causal = 0;
  double flops_per_second_per_rank = 0;  // by the full count
  ExposedSeconds exposed;
  double exposed_share = 0;  // of the step
  double bubble = 0;         // share of the ranks' time in which they wait for each other's passes
  // Of a step: waiting for other pipeline ranks, for copies, for updates on the host; the mean of the pipeline ranks.
  double bubble_seconds = 0, copies_seconds = 0, host_seconds = 0;
  int64_t simulated_micro_batches = 0;  // the timelines have so many
  double simulated_step_seconds = 0;    // and last so long
  std::vector<RankPrediction> ranks;
};

struct PredictOptions {
  bool folds = true;  // false: every micro-batch is simulated, and is in the timelines
};

// What the plan needs of the cluster and its description leaves out: the link to the host, the memory of the host, the
// disk. Empty: nothing.
std::vector<std::string> MissingRates(const Plan& plan, const Cluster& cluster);
// The sentence that says so: "what is offloaded needs host_link and disk, which the cluster h200-pair does not
// describe".
std::string MissingRatesText(const std::vector<std::string>& missing, const Cluster& cluster);

// The plan's ranks fill the cluster's nodes evenly: world_size / nodes on each, in rank order. Throws Error{kConfig,
// PLN031} where the cluster describes no link that the plan needs, or MissingRates.
Prediction Predict(const Plan& plan, const Cluster& cluster, const PredictOptions& options = {});

}  // namespace trireme
