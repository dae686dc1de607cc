// Config + ModelSpec + Cluster -> Plan: who owns which slice of what, batch arithmetic, bytes and traffic. Pure; no
// device, no I/O.
//   Plan plan = MakePlan(config, model, {.world_size = 8, ...});
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/plan/memory_account.h"
#include "engine/plan/unit_spec.h"
#include "parsers/config.h"
#include "parsers/model_spec.h"

namespace trireme {

// Rank grid. rank = (pp_rank * dp_size + dp_rank) * tp_size + tp_rank: tensor-parallel neighbours lie in one node.
struct Topology {
  int pp_size = 1, dp_size = 1, tp_size = 1;
  int world_size() const { return pp_size * dp_size * tp_size; }
  struct Coordinate {
    int pp_rank, dp_rank, tp_rank;
  };
  Coordinate CoordinateOf(int rank) const;
  int RankOf(Coordinate coordinate) const;
};

// Micro-batches of sequences of different lengths (data_efficiency.data_sampling.dynamic_batching).
struct DynamicBatchPlan {
  int64_t max_tokens = 0;  // rows x length of a micro-batch; 0: off
  int64_t min_rows = 1, max_rows = 0;
  int64_t length_multiple = 1;  // lengths are rounded up to it, at most to the longest
};

// One global batch: sample s of step t, micro-batch m, dp rank r is ((t * accumulation + m) * dp + r) * micro + s.
struct BatchPlan {
  int64_t micro_batch_size = 1;   // sequences
  int64_t num_micro_batches = 1;  // gradient_accumulation_steps
  int64_t sequence_length = 0;    // the longest, where they differ
  int64_t train_batch_size = 1;   // micro * accumulation * dp
  // On: micro_batch_size is 1 and counts packs, each with its own rows and length; micro-batch m of dp rank r is pack
  // m * dp + r of the step.
  DynamicBatchPlan dynamic = {};
  bool is_dynamic() const { return dynamic.max_tokens > 0; }
  // At most, where lengths differ.
  int64_t tokens_per_micro_batch() const {
    return is_dynamic() ? dynamic.max_tokens : micro_batch_size * sequence_length;
  }
  int64_t tokens_per_step() const { return train_batch_size / micro_batch_size * tokens_per_micro_batch(); }
  // With each sequence's last label.
  int64_t ids_per_micro_batch() const {
    return tokens_per_micro_batch() + (is_dynamic() ? dynamic.max_rows : micro_batch_size);
  }
};

// Elements [begin, end) of a flat buffer.
struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Where one logical tensor lies in its unit's flat buffer.
struct Segment {
  ParameterSpec parameter;
  int64_t begin = 0;  // elements from the start of the unit's flat buffer
  int64_t count = 0;  // held elements, vocabulary padding included
};

struct UnitRange {  // [first, last], inclusive
  int first = 0, last = 0;
  bool operator==(const UnitRange&) const = default;
};

// A unit's flat buffer. dp rank r owns elements [r * shard_elements, (r + 1) * shard_elements) at ZeRO >= 1.
struct UnitLayout {
  UnitSpec spec;
  std::vector<Segment> segments;
  int64_t elements = 0;            // sum of the segments (each begins at a multiple of kSegmentAlignment)
  int64_t padded_elements = 0;     // multiple of dp_size * kShardAlignment
  int64_t shard_elements = 0;      // padded_elements / dp_size
  bool optimizer_on_host = false;  // masters, moments and their update (offload_optimizer)
  Recompute recompute = Recompute::kNone;
  // Recompute::kFull: the units whose forwards are made once more together, this one among them; only the input of the
  // first is kept.
  UnitRange segment;
  ElementRange Shard(int dp_rank) const { return {dp_rank * shard_elements, (dp_rank + 1) * shard_elements}; }
};
constexpr int64_t kSegmentAlignment = 64;  // elements, so that each tensor starts at a vector boundary
constexpr int64_t kShardAlignment = 64;

struct PlanDTypes {
  DType compute = DType::kFloat32;      // weights and activations
  DType master = DType::kFloat32;       // optimizer's copy and moments (fp64 in fp64 runs)
  DType accumulate = DType::kFloat32;   // gradients (data_types.grad_accum_dtype)
  DType communicate = DType::kFloat32;  // their reduction (communication_data_type)
};

// Where UnitSpec::saved lies in the unit's kSaved buffer, or UnitSpec::deferred in UnitArgs::deferred: each tensor
// begins at a multiple of kSavedAlignment bytes.
struct SavedLayout {
  std::vector<int64_t> offsets;  // bytes, parallel to the specs; -1: not in the arena (Place::kPool, kRemade)
  std::vector<int64_t> bytes;    // parallel to the specs
  int64_t arena_bytes = 0;
  int64_t pool_bytes = 0;
};
constexpr int64_t kSavedAlignment = 256;
SavedLayout LayOutSaved(const UnitSpec& spec, const PlanDTypes& dtypes, int64_t tokens);
SavedLayout LayOutSaved(const std::vector<SavedSpec>& tensors, const PlanDTypes& dtypes, int64_t tokens);

// Bytes that one rank sends (and receives) in one step, by kind.
struct TrafficAccount {
  int64_t gather = 0, reduce = 0;
  int64_t transfer = 0;         // boundaries between pipeline stages, and their gradients
  int64_t tensor_parallel = 0;  // inside the units, of gradients, and of kept inputs
  int64_t down = 0, up = 0;     // between device and host, of what is offloaded
  int64_t total() const { return gather + reduce + transfer + tensor_parallel; }  // sent
};

struct PlanInputs {
  int64_t world_size = 1;
  int64_t sequence_length = 0;
  bool decay_all = false;
  bool fp64 = false;                       // everything in double precision: tests
  Recompute recompute = Recompute::kNone;  // of every layer, where the config says nothing (RecomputeConfig)
  double hidden_dropout = 0;               // probability; 0: none
  // Units of the user's: each takes the place of the family's unit of its kind and, for blocks, its layer.
  std::vector<UnitSpec> own_units = {};
};

struct Plan {
  ModelSpec model;
  Topology topology;
  BatchPlan batch;
  PlanDTypes dtypes;
  int zero_stage = 0;  // as configured
  // 0 where dp_size is 1: nothing to shard. But 3 with offload_param, which needs the weights unit by unit.
  int effective_zero_stage = 0;
  int moments_per_element = 2;   // Adam, Lamb 2; Adagrad, Lion, SGD with momentum 1; SGD 0
  bool trust_ratios = false;     // Lamb: an update needs the norms of whole tensors, and has two halves
  bool separate_master = false;  // compute and master types differ
  bool weights_on_host = false;  // offload_param: own shards of the weights
  bool pin_memory = true;        // what is offloaded lies in page-locked memory
  // Of what is offloaded, masters and moments, or weights, in a file instead of memory (device nvme).
  bool optimizer_on_disk = false, weights_on_disk = false;
  double hidden_dropout = 0;
  bool sequence_parallel = false;     // only where tp_size > 1
  bool partition_boundaries = false;  // each tp rank keeps its part of the inputs that Recompute::kFull keeps
  bool boundaries_on_host = false;    // they lie on the host (cpu_checkpointing)
  std::vector<UnitLayout> units;
  PipelineSchedule pipeline_schedule = PipelineSchedule::kOneForwardOneBackward;
  int virtual_stages = 1;
  std::vector<UnitRange> stages;   // of the model, in order; stage s is chunk s / pp_size of pp rank s % pp_size
  std::vector<UnitRange> buckets;  // ranges of Gather, Reduce and Update, in forward order
  int64_t num_parameters = 0;      // logical: vocabulary padding not counted

  std::vector<MemoryAccount> memory_of_pp_rank;
  MemoryAccount
      memory;  // the largest of them; filled by AccountMemory of engine/schedule (the Program's peak is part of it)
  TrafficAccount traffic;

  int num_units() const { return static_cast<int>(units.size()); }
  // Tokens of a micro-batch that a rank has between units: a share under sequence parallelism.
  int64_t boundary_tokens() const {
    return batch.tokens_per_micro_batch() / (sequence_parallel ? topology.tp_size : 1);
  }
  int num_stages() const { return static_cast<int>(stages.size()); }
  int head() const { return num_units() - 1; }
  bool recomputes() const {  // any unit's forward
    return std::ranges::any_of(units, [](const UnitLayout& unit) { return unit.recompute == Recompute::kFull; });
  }
  int StageOf(int unit) const;
  int PpRankOf(int unit) const { return StageOf(unit) % topology.pp_size; }
  // The head reads the embedding's weights, and both lie on different ranks: the head's ranks hold a copy of unit 0.
  bool tied_across_stages() const { return units.back().spec.reads_tied_embedding && PpRankOf(0) != PpRankOf(head()); }
  // Units whose weights and optimizer states a pp rank holds, in the order of the model; a copy of unit 0 comes first.
  std::vector<int> UnitsOf(int pp_rank) const;
  bool OptimizerOnHost(int unit) const { return units[static_cast<size_t>(unit)].optimizer_on_host; }
  // Master weights are the weights themselves where these have their type and place.
  bool HasMaster(int unit) const { return separate_master || OptimizerOnHost(unit) != weights_on_host; }
  bool offloads() const;  // anything
  // What one rank owns of a unit: its shard at effective ZeRO >= 1, else the whole.
  int64_t OwnElements(int unit) const {
    const UnitLayout& layout = units[static_cast<size_t>(unit)];
    return effective_zero_stage >= 1 ? layout.shard_elements : layout.padded_elements;
  }
};

// Scratch of the compute lane of a pp rank: the largest that any of its units' Forward or Backward asks for.
int64_t WorkspaceBytes(const Plan& plan, int pp_rank = 0);
// What of it the logits of a chunk of tokens take; 0 on a pp rank without the head.
int64_t LogitsBytes(const Plan& plan, int pp_rank = 0);

// Workspace of Forward, Decode and Logits on `tokens` tokens where nothing is kept (UnitArgs::saved is null): blocks
// hold their activations there too.
int64_t UnsavedWorkspaceBytes(const Plan& plan, int64_t tokens);

// Buckets stop growing here even where reduce_bucket_size and allgather_bucket_size allow more, so that communication
// starts before the backward pass ends (Megatron-LM's default bucket); in small models at this share of the model, and
// at ZeRO 3 at stage3_prefetch_bucket_size where that is smaller.
constexpr int64_t kBucketTargetElements = 40'000'000;
constexpr int64_t kMinBucketsOfModel = 16;

// Throws Error{kConfig, PLN00x} for what cannot be planned (docs/errors/plan.md).
Plan MakePlan(const Config& config, const ModelSpec& model, const PlanInputs& inputs);

}  // namespace trireme
