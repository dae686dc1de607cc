// Command lines of `train`, `plan` and `bench`. Hyphens and underscores are the same; "--flag value" and "--flag=value"
// both work.
//   TrainOptions o = ParseTrainFlags(args);  // throws Error{kUsage} on a wrong line, with the nearest flag's name
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/dtype.h"

namespace trireme {

// The values that an "auto" or absent key of the config file takes, under Megatron-LM's names. Unset: the file decides.
struct TrainFlags {
  std::optional<int64_t> global_batch_size;            // train_batch_size
  std::optional<int64_t> micro_batch_size;             // train_micro_batch_size_per_gpu
  std::optional<int64_t> gradient_accumulation_steps;  // gradient_accumulation_steps
  std::optional<double> lr;                // optimizer.params.lr; fills "auto" of scheduler warmup_max_lr too
  std::optional<double> weight_decay;      // optimizer.params.weight_decay
  std::optional<double> adam_beta1;        // optimizer.params.betas[0]
  std::optional<double> adam_beta2;        // optimizer.params.betas[1]
  std::optional<double> adam_eps;          // optimizer.params.eps
  std::optional<double> clip_grad;         // gradient_clipping
  std::optional<int64_t> lr_warmup_iters;  // "auto" of scheduler.params.warmup_num_steps
  std::optional<int64_t> train_iters;      // "auto" of scheduler.params.total_num_steps
  std::optional<int64_t> tensor_model_parallel_size;    // tensor_parallel.tp_size
  std::optional<int64_t> pipeline_model_parallel_size;  // pipeline_parallel.pp_size
  bool sequence_parallel = false;                       // trireme.sequence_parallel
  std::string recompute_granularity;                    // trireme.recompute: "full", "selective"; "": the file decides
  std::string recompute_method;                         // of full: "uniform", "block"; "": each layer alone
  std::optional<int64_t> recompute_num_layers;  // uniform: of one checkpoint; block: of each stage. 1 if not given
  bool distribute_saved_activations = false;    // activation_checkpointing.partition_activations
  std::optional<int64_t> seed;
  bool bf16 = false;    // bf16.enabled
  bool fp16 = false;    // fp16.enabled
  bool fp64 = false;    // double precision throughout, for tests of layouts
  bool strict = false;  // warnings are errors
  // `plan` only: values that change no layout (learning rates, schedule lengths) may stay open.
  bool for_plan = false;
};

// Shape of a GPT of one's own; all of num_layers, hidden_size, num_attention_heads, or none.
struct ModelFlags {
  std::string model_name;  // a name of the list, or a folder or config.json of Hugging Face
  std::optional<int64_t> num_layers;
  std::optional<int64_t> hidden_size;
  std::optional<int64_t> num_attention_heads;
  std::optional<int64_t> vocab_size;
  std::optional<int64_t> max_position_embeddings;
  bool untie = false;  // an own weight for the output head
};

// What happens to activations, in training and in its plan.
struct ActivationFlags {
  double hidden_dropout = 0;     // probability, of the embedding's output and of what joins the residual stream
  double attention_dropout = 0;  // only 0: the fused kernels have none
};

// --inject-value: element 0 of what one pass of one unit makes on one rank (TrainerSetup::inject_values).
struct InjectFlag {
  int64_t step = 0, rank = 0, unit = 0, micro_batch = 0;
  bool backward = false;
  double value = 0;
  bool operator==(const InjectFlag&) const = default;
};

struct TrainOptions {
  std::string deepspeed_config;
  TrainFlags fill;
  ModelFlags model;
  ActivationFlags activations;
  std::string init_from;                // Hugging Face folder: config.json + safetensors
  std::string data_path;                // prefix of .bin/.idx; of a blend the first
  std::vector<std::string> data_blend;  // the words of --data-path if more than one: [WEIGHT] PREFIX ...
  std::string split = "969,30,1";       // train, validation, test
  int64_t seq_length = 1024;            // tokens per sample
  int64_t train_iters = 0;              // optimizer steps; 0: not given
  std::string save, load;               // checkpoint folders
  int64_t save_interval = 0;            // steps; 0: at the end only
  std::string save_hf;                  // Hugging Face folder, written at the end
  std::optional<DType> save_hf_dtype;   // of its weights; unset: the compute type
  std::optional<int64_t> log_interval;  // steps between progress lines; unset: steps_per_print
  int64_t eval_interval = 1000;         // steps; 0: never
  int64_t eval_iters = 100;             // batches per evaluation; 0: the whole validation part
  bool no_shuffle = false;              // samples in file order, the whole file for training
  bool decay_all = false;               // weight decay on biases and norms too
  bool deterministic = false;
  std::vector<int64_t> inject_overflow;     // steps from 0 whose loss is multiplied by 1e38: tests of the loss scaler
  std::optional<InjectFlag> inject_value;   // tests what follows a value that is not finite
  std::string device;                       // "cpu", "cuda"; "": a GPU where there is one
  bool oversubscribe = false;               // ranks share GPUs
  std::optional<double> device_memory_gib;  // granted to each rank of its device; unset: what is free
  std::optional<double> host_memory_gib;    // granted to all ranks of a host
  std::string trace;                        // Chrome trace out
  std::string log_json;                     // one JSON object per step out
  std::string log_level = "info";           // of messages on stderr: debug, info, warning, error
  std::string dump_config;                  // every value of the config with its origin, JSON out
  std::optional<double> peak_tflops;        // of one device, for the MFU; unset: of the GPU's name
  int64_t local_rank = -1;                  // -1: not given. Decides nothing: see CheckLocalRank
  bool help = false;
};

struct PlanOptions {
  std::string deepspeed_config;
  TrainFlags fill;
  ModelFlags model;
  ActivationFlags activations;
  std::string init_from;
  std::string cluster;  // name or file of a description (parsers/cluster.h); "": none, and no time is predicted
  std::optional<int64_t> num_nodes, num_gpus;  // per node; unset: the cluster's, or 1
  int64_t seq_length = 1024;
  std::optional<double> gpu_memory_gib;  // of one GPU; unset: the cluster's, or not compared
  bool resolved = false;                 // show every resolved value, defaults too
  bool json = false;
  std::vector<std::string> with;  // "KEY=VALUE": keys of the config set to other values
  std::string suggest;            // file for the config of the fastest layout that fits; "": none is looked for
  std::string html;               // page out
  bool quiet = false;             // no warnings about config and model; no flag: `bench` sets it
  bool help = false;
};

// --trace records the steps before the one before this, and is written before that one: both take longer.
constexpr int64_t kFirstUntracedStep = 7;

struct BenchOptions {
  std::string config;  // ds_config.json; "": AdamW in the type that suits the device, and nothing else
  ModelFlags model;
  std::string init_from;
  std::string layouts;                       // "dp2,tp2:sp,..." or a file of such; "": by the number of ranks
  std::optional<int64_t> num_gpus;           // ranks; unset: one a device, without devices 2
  bool cpu = false, oversubscribe = false;   // as of `launch`
  std::optional<int64_t> global_batch_size;  // sequences; unset: the config's, or 8 a rank
  int64_t micro_batch_size = 1;              // sequences, where a layout names none
  int64_t seq_length = 1024;
  int64_t steps = 20, warmup = kFirstUntracedStep;  // measured, and before them
  int64_t all_steps() const { return warmup + steps; }
  std::string data_path;  // "": random tokens
  std::string cluster;    // to predict beside; "": nothing is predicted
  std::optional<double> peak_tflops;
  std::string json, html;  // files out; "": none
  std::string work_dir;    // for configs, logs and traces; "": a temporary one, removed
  bool help = false;
};
// `args` without the program's and the subcommand's name. Throw Error{kUsage, USE001..}.
TrainOptions ParseTrainFlags(const std::vector<std::string>& args);
PlanOptions ParsePlanFlags(const std::vector<std::string>& args);
BenchOptions ParseBenchFlags(const std::vector<std::string>& args);

// A type that weights can have in a file: fp32, bf16, fp16 or fp64; "" is none. Throws Error{kUsage, USE002}.
std::optional<DType> ParseWeightsDType(const std::string& text, const std::string& flag);

// Launchers that pass --local_rank set LOCAL_RANK too, and the environment decides. A rank that was given the flag
// alone would take GPU 0 beside another: Throws Error{kUsage, USE005} if `flag` is above 0 and `environment` is unset.
void CheckLocalRank(int64_t flag, std::optional<int64_t> environment);

std::string TrainHelp();  // every flag with its default
std::string PlanHelp();
std::string BenchHelp();

}  // namespace trireme
