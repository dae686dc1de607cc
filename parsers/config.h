// The typed ds_config.json: every default filled, every "auto" resolved, every problem reported with file, line, key
// and cure.
//   ParseResult r = ParseConfigFile("ds_config.json", flags, world_size, model.hidden_size);
//   r.diagnostics.ThrowIfErrors();  // else r.config is complete
// Fields carry the JSON keys' names and DeepSpeed's defaults (0.19); where a default differs on purpose, the field says
// why.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/dtype.h"
#include "parsers/diagnostics.h"

namespace trireme {

struct TrainFlags;  // parsers/cli.h

// train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x dp. All in samples (sequences).
struct BatchConfig {
  int64_t train_batch_size = 0;
  int64_t train_micro_batch_size_per_gpu = 0;
  int64_t gradient_accumulation_steps = 0;
};

enum class OptimizerType { kAdam, kAdamW, kSgd, kAdagrad, kLion, kLamb };

// `type` names in any letter case for what DeepSpeed knows by name, exactly "SGD" for SGD (PyTorch's class). Formulas
// and defaults of each: docs/optimizers.md.
struct OptimizerConfig {
  OptimizerType type = OptimizerType::kAdam;
  double lr = 1e-3;  // 1e-2 for Adagrad
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;        // 1e-10 for Adagrad
  double weight_decay = 0;  // 0.01 for AdamW with torch_adam
  bool bias_correction = true;
  bool adam_w_mode = true;  // read for type Adam only
  bool torch_adam = false;
  double momentum = 0;  // momentum, dampening, nesterov: SGD only
  double dampening = 0;
  bool nesterov = false;
  double lr_decay = 0;                   // Adagrad
  double initial_accumulator_value = 0;  // Adagrad
  double max_coeff = 10;                 // max_coeff, min_coeff, eps_inside_sqrt: Lamb
  double min_coeff = 0.01;
  bool eps_inside_sqrt = false;
  // The rule in effect, out of type and adam_w_mode: true p -= lr*wd*p; false g += wd*p.
  bool decoupled_weight_decay = true;
};

enum class SchedulerType { kNone, kWarmupLR, kWarmupDecayLR, kWarmupCosineLR, kLRRangeTest, kOneCycle };
enum class WarmupType { kLog, kLinear };

// All lengths count optimizer steps (updates that were applied), whatever ranks and accumulation. Only the fields of
// `type` mean something.
struct SchedulerConfig {
  SchedulerType type = SchedulerType::kNone;  // kNone: the optimizer's lr, constant
  // WarmupLR, WarmupDecayLR, WarmupCosineLR
  double warmup_min_lr = 0;
  double warmup_max_lr = 1e-3;      // resolved: WarmupLR without the key has the optimizer's lr, WarmupDecayLR 1e-3
  int64_t warmup_num_steps = 1000;  // as written; the formulas use max(2, this)
  WarmupType warmup_type = WarmupType::kLog;
  int64_t total_num_steps = 0;  // WarmupDecayLR, WarmupCosineLR
  double warmup_min_ratio = 0;  // WarmupCosineLR, of the optimizer's lr
  double cos_min_ratio = 1e-4;  // WarmupCosineLR, of the optimizer's lr
  int64_t last_batch_iteration = -1;
  // LRRangeTest
  double lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1.0;
  bool lr_range_test_staircase = false;
  // OneCycle
  double cycle_min_lr = 0;
  double cycle_max_lr = 0;
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  int64_t cycle_second_step_size = 2000;  // resolved: the first's where absent
  int64_t cycle_first_stair_count = 0;
  int64_t cycle_second_stair_count = 0;  // resolved: the first's where absent
  int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0;
};

struct Fp16Config {
  bool enabled = false;
  double loss_scale = 0;                // above 0: static; 0 selects dynamic scaling
  int64_t initial_scale_power = 16;     // first dynamic scale is 2^this
  int64_t loss_scale_window = 1000;     // steps without overflow before the scale doubles
  int64_t hysteresis = 2;               // the overflow that first halves it; at ZeRO stage 0 each one does
  bool consecutive_hysteresis = false;  // a step without overflow gives all of the hysteresis back
  double min_loss_scale = 1;            // the floor. Fractions are taken: DeepSpeed took them until 0.17
};

struct Bf16Config {
  bool enabled = false;
};

struct DataTypesConfig {
  std::optional<DType> grad_accum_dtype;  // absent: see GradAccumDType
};

// Where states lie that the device has no room for. kNvme: a file of this rank.
enum class OffloadDevice { kNone, kCpu, kNvme };

// zero_optimization.offload_optimizer, stages 1 to 3 (docs/offload.md): masters, moments and the update.
struct OffloadOptimizerConfig {
  OffloadDevice device = OffloadDevice::kNone;
  std::string nvme_path;     // kNvme: folder of the files
  bool pin_memory = true;    // host buffers that the device copies from and to are page-locked
  int64_t buffer_count = 4;  // kNvme: buffers of states on their way
  double ratio = 1;          // of the elements: so much is updated on the CPU, by whole units
};

// zero_optimization.offload_param, stage 3: the own shards of the weights.
struct OffloadParamConfig {
  OffloadDevice device = OffloadDevice::kNone;
  std::string nvme_path;
  bool pin_memory = true;
};

// Bucket and threshold keys count elements, not bytes.
struct ZeroConfig {
  int zero_stage = 0;  // JSON key: stage. 0 off; 1 shards optimizer states; 2 also gradients; 3 also parameters
  int64_t reduce_bucket_size = 500'000'000;
  int64_t allgather_bucket_size = 500'000'000;
  int64_t stage3_prefetch_bucket_size = 50'000'000;
  OffloadOptimizerConfig offload_optimizer;  // resolved: kNone where it has no effect
  OffloadParamConfig offload_param;
};

// How blocks move between memory and disk under offload to NVMe. Sizes in bytes.
struct AioConfig {
  int64_t block_size = 1 << 20;      // of one read or write; rounded up to a multiple of 4096
  int64_t queue_depth = 8;           // blocks under way at once, per thread
  int64_t intra_op_parallelism = 1;  // threads that move blocks
  bool single_submit = false;        // one system call per block, instead of one for all that are ready
  bool overlap_events = true;        // blocks follow as others end; false: the next queue_depth when all of them have
};

struct TensorParallelConfig {
  int64_t tp_size = 1;
  // Norms and the residual stream are split along the tokens (arXiv:2205.05198): "trireme": {"sequence_parallel":
  // true}, or --sequence-parallel.
  bool sequence_parallel = false;
};

// In which order a pipeline's ranks work on micro-batches (engine/schedule/pipeline_order.h).
enum class PipelineSchedule { kGPipe, kOneForwardOneBackward, kZeroBubble };

// pp_size in "pipeline_parallel"; the others in "trireme": {"pipeline": {...}}, or DeepSpeed's "pipeline.partition".
struct PipelineParallelConfig {
  int64_t pp_size = 1;
  int64_t virtual_stages = 1;  // stages of one rank; more than 1: interleaved
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  // "uniform", "parameters", "time", "type:REGEX", or by hand "layers:0,5,11": the first decoder layer of each stage.
  std::string partition = "parameters";
};

// What becomes of what a layer's forward pass makes, until its backward pass.
enum class Recompute : uint8_t {
  kNone,   // kept
  kCheap,  // kept, but for what can be made once more without a product of matrices or attention
  kFull,   // only the input is kept: the forward pass is made once more
};

struct RecomputeRun {
  Recompute policy = Recompute::kNone;
  int64_t layers = 0;  // 0: all that follow
  bool operator==(const RecomputeRun&) const = default;
};

// "trireme": {"recompute": ...} or Megatron-LM's flags say whether; "activation_checkpointing" says how.
struct RecomputeConfig {
  std::vector<RecomputeRun> runs;     // from the first layer on; what they leave is kept. Empty: nothing was said
  bool of_each_stage = false;         // they begin anew in each pipeline stage
  int64_t layers_per_checkpoint = 0;  // kFull: so many layers share one kept input; 0: not said
  int64_t number_checkpoints = 0;     // else: so many kept inputs in the whole model; 0: not said, one a layer
  bool partition_activations = false;
  bool cpu_checkpointing = false;
};

enum class RateScaling { kLinear, kSqrt, kNone };
enum class PickingOrder { kFile, kRandom, kLength };  // "dataloader", "random", "seqlen"

// data_efficiency.data_sampling.dynamic_batching: micro-batches by tokens instead of by samples
// (docs/dynamic_batching.md).
struct DynamicBatchingConfig {
  bool enabled = false;
  int64_t max_tokens = 0;                                // of one micro-batch, padding included
  RateScaling lr_scaling_method = RateScaling::kLinear;  // with the step's samples over train_batch_size
  int64_t min_batch_size = 1;                            // samples of one micro-batch
  std::optional<int64_t> max_batch_size = {};
  PickingOrder sequence_picking_order = PickingOrder::kFile;
};
struct DataEfficiencyConfig {
  int64_t seed = 1234;
  DynamicBatchingConfig dynamic_batching;
};

// Keys of our own, in the "trireme" section.
struct TriremeConfig {
  bool deepspeed_accumulation = false;  // accumulate and reduce gradients in the types in which DeepSpeed does it
  // On the step on which the loss scale doubles, DeepSpeed divides the gradients by the new scale: half of them reaches
  // the moments. False divides by the scale that they have.
  bool scale_growth_quirk = false;
  int64_t max_skipped_steps = 50;      // in a row, without a loss scale that comes down: the run ends
  int64_t check_replicas_every = 100;  // steps between comparisons of what must be equal on several ranks; 0: never
  bool find_bad_value = true;  // a step that is skipped for what no loss scale cures is made once more, to name where
  // `train` chooses at its start, unit by unit, what is recomputed and what is offloaded, so that the plan just fits
  // the device (engine/advise/fill.h); trireme.recompute, offload ratio and prefetch size give way to it.
  bool fill = false;
};

// Where a resolved value came from: one row of the table that a run prints at its start.
struct Origin {
  std::string key;                 // "optimizer.params.lr"
  std::string value;               // as text
  std::string source;              // "ds_config.json:7", "--lr", "--with", "default", or "derived" with the rule
  std::string default_value = {};  // what it would be if nobody said anything, as text; "" where that is not one value
};

struct Config {
  BatchConfig batch;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  Fp16Config fp16;
  Bf16Config bf16;
  DataTypesConfig data_types;
  std::optional<DType> communication_data_type;  // absent: see CommunicationDType
  ZeroConfig zero_optimization;
  AioConfig aio;
  double gradient_clipping = 1.0;  // of the global L2 norm; <= 0 is off
  int64_t steps_per_print = 10;    // 0 never. DeepSpeed's default is never; --log-interval wins over this default
  TensorParallelConfig tensor_parallel;
  PipelineParallelConfig pipeline_parallel;
  RecomputeConfig recompute;
  DataEfficiencyConfig data_efficiency;
  TriremeConfig trireme;
  bool fp64 = false;    // --fp64: everything in double precision, for tests of layouts
  int64_t seed = 1234;  // --seed

  int64_t world_size = 1;  // what the batch triangle was resolved for
  int64_t dp_size = 1;     // world_size / (tp_size x pp_size)
  std::vector<Origin> origins;
};

// Element type of weights in forward and backward: fp64, bf16, fp16 or fp32.
DType ComputeDType(const Config& config);
// Element type in which gradients add up over micro-batches: fp64 under --fp64; data_types.grad_accum_dtype if given
// (fp32 or the compute type); else fp32, or the compute type under trireme.deepspeed_accumulation, as DeepSpeed has it.
DType GradAccumDType(const Config& config);
// Element type of gradient reductions: communication_data_type if given; else that of GradAccumDType, or
// the compute type under trireme.deepspeed_accumulation.
DType CommunicationDType(const Config& config);

std::string_view Name(OptimizerType type);
std::string_view Name(SchedulerType type);

struct ParseResult {
  Config config;  // complete if diagnostics has no errors; else whatever could be read
  Diagnostics diagnostics;
};

// Reads and resolves a DeepSpeed config for `world_size` ranks; `path` is its file, or its text in URL-safe base64.
// Flags fill absent and "auto" keys; a flag that differs from a written value is an error that names both.
// `hidden_size` (0: unknown) resolves "auto" bucket sizes. Never throws on account of the file: a missing file, wrong
// syntax and wrong values are all diagnostics.
ParseResult ParseConfigFile(const std::filesystem::path& path, const TrainFlags& flags, int64_t world_size,
                            int64_t hidden_size = 0);
// The same on text; `name` stands for the file in messages.
// `with`: "KEY=VALUE", set over what the text has (SetKeys in layout_text.h, which may throw); a value of these has the
// source "--with", and so have its problems.
ParseResult ParseConfigText(std::string_view text, const std::string& name, const TrainFlags& flags, int64_t world_size,
                            int64_t hidden_size = 0, std::span<const std::string> with = {});

}  // namespace trireme
