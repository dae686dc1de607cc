// A small GPT trained on in-process ranks: what the layout tests compare. Tokens are a fixed function of the sample's
// number.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/in_process.h"
#include "engine/trainer/trainer.h"

namespace trireme::test {

struct TinyRun {
  int world = 1, zero_stage = 0;
  int64_t accumulation = 1, global_batch = 18, steps = 12;
  bool fp64 = true, sgd = false, tied = true, bf16 = false;
  double clip = 0;                         // 0: off
  int64_t bucket = 3000;                   // elements: several units a bucket, several buckets a model
  Recompute recompute = Recompute::kNone;  // where `activations` says nothing
  RecomputeConfig activations = {};
  bool evaluates = false;  // an evaluation after every second step
  int64_t heads = 3, layers = 3;
  int64_t tp = 1, pp = 1, virtual_stages = 1;
  bool sequence_parallel = false;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  std::function<OwnModules(int rank)> modules = {};
  std::string load = {}, save = {};  // checkpoint folders: read before the first step, written after the last
  bool fp16 = false;
  double loss_scale = 0;  // 0: dynamic, with the following
  int64_t initial_scale_power = 16, loss_scale_window = 1000, hysteresis = 2;
  std::vector<int64_t> inject_overflow = {};
  std::vector<InjectedStepValue> inject_values = {};
  bool find_bad_value = true;
  int64_t check_replicas_every = 100;
  std::optional<ModelSpec> model = {};  // instead of the GPT-2 of `heads` and `tied`
  double dropout = 0;
  double offload_optimizer = 0;  // ratio; 0: none
  bool offload_param = false;
  int64_t fill_bytes = 0;  // above 0: "trireme.fill", with so much device memory granted to each rank
  std::string nvme = {};   // folder: what is offloaded lies there
  at::Device device = at::kCPU;
  // What each communicator of the in-process world is wrapped into; host-staged for a GPU that ranks share.
  std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)> carry = {};
  std::optional<OptimizerConfig> optimizer = {};  // instead of what `sgd` says
  int64_t max_tokens = 0;  // above 0: dynamic batching; global_batch counts packs, accumulation follows from the ranks
  RateScaling scaling = RateScaling::kNone;
  // This rank's next step instead of SyntheticFill.
  std::function<StepBatch(const Trainer&)> next = {};
  std::function<void(int rank, const Instruction&)> before_instruction = {};  // on the lane where it runs
};

using Weights = std::map<std::string, std::vector<double>>;  // logical tensors, vocabulary padding left out, held order

struct Curve {
  std::string failed;  // "" or what the ranks threw
  std::vector<double> losses, norms, scales;
  SkipCounts skips;
  Weights weights;
  bool ranks_agree = true;     // every rank reports the same losses and norms, bitwise
  bool replicas_equal = true;  // every whole copy of the weights is the masters, rounded, bitwise
};

TrainerSetup SetupOf(const TinyRun& run, int rank = 0);
// This rank's micro-batches of the trainer's next step.
TokenFill SyntheticFill(const Trainer& trainer);
// Adds what this rank owns; call it on every rank, one at a time. A copy of a tied weight must equal what is there.
void Collect(Trainer& trainer, Weights& weights);

// Whether this rank's whole weights (ZeRO 0-2) are `masters`, rounded to the compute type.
bool ReplicaEquals(Trainer& trainer, const Weights& masters);

// `steps` is the whole run's length; a resumed run does what is left.
// Trains one rank whose trainer was made by the caller; appends to losses, norms (-1 where not finite) and the loss
// scales after each step.
void TrainRank(const TinyRun& run, Trainer& trainer, std::vector<double>& losses, std::vector<double>& norms,
               std::vector<double>* scales = nullptr);

// Trains on `comms` (or a fresh world) and returns rank 0's curve and the gathered weights.
Curve Train(const TinyRun& run, std::shared_ptr<InProcessWorld> comms = nullptr);

// The operations that training takes something from: all but what ranks tell each other about their memory before the
// first step (all_gather in group world).
std::vector<OperationCount> OperationsOfTraining(const InProcessWorld& comms);

double RelativeDifference(const std::vector<double>& a, const std::vector<double>& b);  // largest over the elements
// L2 norm of the difference over that of `b`; key biases left out: their exact gradient is zero, so they hold round-off
// only.
double WeightDifference(const Weights& a, const Weights& b);

}  // namespace trireme::test
