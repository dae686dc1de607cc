#include "parsers/cli.h"

#include <fmt/core.h>

#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "parsers/flag_set.h"

namespace trireme {
namespace {

[[noreturn]] void Fail(const char* id, const std::string& what, const std::string& where, const std::string& fix) {
  throw Error(ErrorCode::kUsage, id, what, where, fix);
}

void AddFill(FlagSet& set, TrainFlags& f) {
  set.AddHeading("Values for \"auto\" and absent keys of the config; a difference from a written value is an error:");
  set.Add("micro-batch-size", "N", "train_micro_batch_size_per_gpu", f.micro_batch_size);
  set.Add("global-batch-size", "N", "train_batch_size", f.global_batch_size);
  set.Add("gradient-accumulation-steps", "N", "gradient_accumulation_steps", f.gradient_accumulation_steps);
  set.Add("lr", "X", "optimizer.params.lr", f.lr);
  set.Add("weight-decay", "X", "optimizer.params.weight_decay", f.weight_decay);
  set.Add("adam-beta1", "X", "first of optimizer.params.betas", f.adam_beta1);
  set.Add("adam-beta2", "X", "second of optimizer.params.betas", f.adam_beta2);
  set.Add("adam-eps", "X", "optimizer.params.eps", f.adam_eps);
  set.Add("clip-grad", "X", "gradient_clipping; 0 is off", f.clip_grad);
  set.Add("lr-warmup-iters", "N", "scheduler.params.warmup_num_steps, in optimizer steps", f.lr_warmup_iters);
  set.Add("bf16", "bf16.enabled", f.bf16);
  set.Add("fp16", "fp16.enabled", f.fp16);
  set.Add("tensor-model-parallel-size", "N", "tensor_parallel.tp_size", f.tensor_model_parallel_size);
  set.Add("pipeline-model-parallel-size", "N", "pipeline_parallel.pp_size", f.pipeline_model_parallel_size);
  set.Add("sequence-parallel", "trireme.sequence_parallel: norms and residuals split over the tp ranks",
          f.sequence_parallel);
  set.Add("fp64", "double precision throughout, to compare layouts", f.fp64);
  set.Add("strict", "warnings about the config are errors", f.strict);
}

void AddModel(FlagSet& set, ModelFlags& m, std::string& init_from) {
  set.AddHeading("Model: a name, a Hugging Face folder, or a shape of your own:");
  set.Add("model_name", "NAME",
          "gpt-1.3b, llama2-7b, qwen2.5-1.5b, pythia-1.4b and others (a wrong one lists them), or a config.json",
          m.model_name);
  set.Add("init-from", "DIR", "Hugging Face folder: config.json and safetensors", init_from);
  set.Add("num-layers", "N", "decoder blocks", m.num_layers);
  set.Add("hidden-size", "N", "width", m.hidden_size);
  set.Add("num-attention-heads", "N", "attention heads", m.num_attention_heads);
  set.Add("vocab-size", "N", "tokens of the vocabulary, 50257 if not given", m.vocab_size);
  set.Add("max-position-embeddings", "N", "longest sequence, 2048 if not given", m.max_position_embeddings);
  set.Add("untie", "an own weight for the output head", m.untie);
}

// What DeepSpeed's users write; the switches change nothing here either.
struct Deepspeed {
  bool deepspeed = false, deepscale = false;
  std::string config, old_config;
};

void AddDeepspeed(FlagSet& set, Deepspeed& d) {
  set.AddHeading("DeepSpeed:");
  set.Add("deepspeed", "accepted; the config decides", d.deepspeed);
  set.Add("deepspeed_config", "FILE", "the ds_config.json, or its text in URL-safe base64", d.config);
  set.Add("deepscale", "old name of --deepspeed", d.deepscale);
  set.Add("deepscale_config", "FILE", "old name of --deepspeed_config", d.old_config);
}

std::string ConfigPath(const Deepspeed& d) {
  if (!d.config.empty() && !d.old_config.empty()) {
    Fail("USE004", "--deepspeed_config and --deepscale_config are both given", "", "keep --deepspeed_config");
  }
  return d.config.empty() ? d.old_config : d.config;
}

void AddActivations(FlagSet& set, TrainFlags& f, ActivationFlags& activations) {
  set.Add("recompute-granularity", "full|selective",
          "full: a layer's forward is made once more before its backward, selective: what is cheap of it",
          f.recompute_granularity);
  set.Add("recompute-method", "uniform|block", "of full: so many layers at a time, or the first so many of each stage",
          f.recompute_method);
  set.Add("recompute-num-layers", "N", "of --recompute-method, 1 if not given", f.recompute_num_layers);
  set.Add("distribute-saved-activations", "activation_checkpointing.partition_activations",
          f.distribute_saved_activations);
  set.Add("hidden-dropout", "P", "dropout of the embedding and of what joins the residual stream",
          activations.hidden_dropout);
  set.Add("attention-dropout", "P", "only 0 works: the fused attention has none", activations.attention_dropout);
}

struct TrainTable {
  TrainOptions o;
  Deepspeed deepspeed;
  FlagSet set{"train"};
  std::optional<int64_t> train_iters;
  std::string inject_overflow, inject_value, save_hf_dtype;
  std::vector<std::string> data_path;

  TrainTable() {
    AddDeepspeed(set, deepspeed);
    AddModel(set, o.model, o.init_from);
    set.AddHeading("Data:");
    set.Add("data-path", "[W] PREFIX ...",
            "tokens: PREFIX.bin and .idx, made by trireme data; several, with weights: a blend", data_path);
    set.Add("split", "A,B,C", "shares of training, validation and test", o.split);
    set.Add("seq-length", "N", "tokens per sample", o.seq_length);
    set.Add("no-shuffle", "samples in file order, the whole file for training", o.no_shuffle);
    set.AddHeading("Training:");
    set.Add("train-iters", "N", "optimizer steps; fills \"auto\" of total_num_steps too", train_iters);
    set.Add("seed", "N", "of weights and order of samples, 1234 if not given", o.fill.seed);
    set.Add("decay-all", "weight decay on biases and norms too, not on matrices only", o.decay_all);
    set.Add("deterministic", "bitwise equal runs on GPUs too, slower", o.deterministic);
    set.Add("inject-overflow", "3,4,9", "multiply the loss of these steps, counted from 0, by 1e38: tests loss scaling",
            inject_overflow);
    set.Add("inject-value", "7:1:2:0:forward:nan",
            "set a value that step, rank, unit, micro-batch and pass make: tests how it is found", inject_value);
    AddActivations(set, o.fill, o.activations);
    set.Add("device", "cpu|cuda", "a GPU where there is one if not given", o.device);
    set.Add("oversubscribe", "let ranks share the GPUs there are: for trying layouts, not for speed", o.oversubscribe);
    set.Add("device-memory-gib", "X", "device memory of each rank; a plan that needs more is refused at the start",
            o.device_memory_gib);
    set.Add("host-memory-gib", "X", "host memory of all ranks of a host, instead of what it has", o.host_memory_gib);
    set.Add("local_rank", "N", "accepted as launchers pass it; LOCAL_RANK of the environment decides", o.local_rank);
    set.AddHeading("Checkpoints, evaluation and reports; all intervals count optimizer steps:");
    set.Add("save", "DIR", "where checkpoints go", o.save);
    set.Add("load", "DIR", "the checkpoint to go on from", o.load);
    set.Add("save-hf", "DIR", "a Hugging Face folder with the weights of the last step, written at the end", o.save_hf);
    set.Add("save-hf-dtype", "TYPE", "fp32, bf16, fp16 or fp64; the compute type if not given", save_hf_dtype);
    set.Add("save-interval", "N", "0: at the end only", o.save_interval);
    set.Add("log-interval", "N", "steps between progress lines; steps_per_print if not given", o.log_interval);
    set.Add("eval-interval", "N", "0: never", o.eval_interval);
    set.Add("eval-iters", "N", "batches per evaluation; 0: the whole validation part", o.eval_iters);
    set.Add("log-json", "FILE", "one JSON object per optimizer step", o.log_json);
    set.Add("log-level", "LEVEL", "of messages on stderr: debug, info, warning or error", o.log_level);
    set.Add("dump-config", "FILE", "every value of the config with its origin, as JSON", o.dump_config);
    set.Add("peak-tflops", "X", "of one device, which the MFU is a share of; by the GPU's name if not given",
            o.peak_tflops);
    set.Add("trace", "FILE", "a Chrome trace of every instruction", o.trace);
    AddFill(set, o.fill);
    set.Add("help", "this text", o.help);
  }
};

struct PlanTable {
  PlanOptions o;
  Deepspeed deepspeed;
  std::string positional;
  FlagSet set{"plan"};

  PlanTable() {
    set.AddPositional("ds_config.json", "the config to plan for", positional);
    AddDeepspeed(set, deepspeed);
    AddModel(set, o.model, o.init_from);
    set.AddHeading("Cluster and data:");
    set.Add("cluster", "NAME|FILE",
            "machine to predict the time of: a description, or one's name (a wrong one lists them)", o.cluster);
    set.Add("num_nodes", "N", "machines; the cluster's, or 1, if not given", o.num_nodes);
    set.Add("num_gpus", "N", "GPUs (ranks) of each machine; as above", o.num_gpus);
    set.Add("gpu-memory-gib", "X", "memory of one GPU, to compare with; the cluster's if not given", o.gpu_memory_gib);
    set.Add("json", "one JSON object instead of text (docs/plan.md)", o.json);
    set.Add("seq-length", "N", "tokens per sample", o.seq_length);
    set.Add("html", "FILE", "a page: one step on every rank's lanes, memory over time; needs --cluster", o.html);
    set.Add("train-iters", "N", "fills \"auto\" of total_num_steps", o.fill.train_iters);
    set.Add("resolved", "show every value that the config resolves to, not only those that say something", o.resolved);
    set.AddHeading("Other layouts:");
    set.Add("with", "KEY=VALUE...", "the config with other values, as zero_optimization.stage=2", o.with);
    set.Add("suggest", "OUT.json", "ranks the layouts that fit by predicted throughput, writes the config of the first",
            o.suggest);
    AddActivations(set, o.fill, o.activations);
    AddFill(set, o.fill);
    set.Add("help", "this text", o.help);
  }
};

struct BenchTable {
  BenchOptions o;
  FlagSet set{"bench"};

  BenchTable() {
    set.AddPositional("ds_config.json", "optimizer, types and what else the layouts have in common", o.config);
    AddModel(set, o.model, o.init_from);
    set.AddHeading("Layouts and ranks:");
    set.Add("layouts", "LIST|FILE",
            "dp2,tp2:sp,pp2:zero-bubble or a file with one a line; parts: dpN tpN ppN vN zeroN mbN sp 1f1b gpipe "
            "zero-bubble cheap full offload, or KEY=VALUE of the config; some for the ranks if not given",
            o.layouts);
    set.Add("num_gpus", "N", "ranks; one a GPU, or 2 on the CPU, if not given", o.num_gpus);
    set.Add("cpu", "ranks see no GPU", o.cpu);
    set.Add("oversubscribe", "ranks share GPUs", o.oversubscribe);
    set.AddHeading("What each layout trains:");
    set.Add("global-batch-size", "N", "sequences; the config's, or 8 a rank, if not given", o.global_batch_size);
    set.Add("micro-batch-size", "N", "sequences, where a layout names none", o.micro_batch_size);
    set.Add("seq-length", "N", "tokens per sample", o.seq_length);
    set.Add("steps", "N", "measured", o.steps);
    set.Add("warmup", "N", "steps before them; at least 7, of which some are traced", o.warmup);
    set.Add("data-path", "PREFIX", "tokens; random ones if not given", o.data_path);
    set.AddHeading("Reports:");
    set.Add("cluster", "NAME|FILE", "predicts each figure on this description", o.cluster);
    set.Add("peak-tflops", "X", "of one device, which the MFU is a share of; by the GPU's name if not given",
            o.peak_tflops);
    set.Add("json", "FILE", "one JSON object a layout (docs/bench.md)", o.json);
    set.Add("html", "FILE", "a page with plots and timelines", o.html);
    set.Add("work-dir", "DIR", "keeps configs, logs and traces there", o.work_dir);
    set.Add("help", "this text", o.help);
  }
};

void AtLeast(int64_t value, int64_t least, const char* flag) {
  if (value < least) {
    Fail("USE002", fmt::format("{} is less than {}", value, least), flag, fmt::format("pass at least {}", least));
  }
}

void CheckFill(const TrainFlags& f) {
  if (f.bf16 + f.fp16 + f.fp64 > 1) {
    Fail("USE004", "more than one of --bf16, --fp16 and --fp64 is given", "", "keep one");
  }
}

void CheckSplit(const std::string& split) {
  double sum = 0;
  const std::vector<std::string> parts = Split(split, ',');
  bool ok = parts.size() == 3;
  for (const std::string& part : parts) {
    double value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    ok = ok && error == std::errc() && end == part.data() + part.size() && value >= 0 && value < 1e9;
    sum += value;
  }
  if (!ok || !(sum > 0)) {
    Fail("USE002", fmt::format("\"{}\" is no split: three shares of at least 0, not all 0", split), "--split",
         "write for example 969,30,1");
  }
}

std::vector<int64_t> Steps(const std::string& list, const char* flag) {
  std::vector<int64_t> steps;
  if (list.empty()) return steps;
  for (const std::string& part : Split(list, ',')) {
    int64_t step = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), step);
    if (error != std::errc() || end != part.data() + part.size() || step < 0) {
      Fail("USE002", fmt::format("\"{}\" is no list of steps, which count from 0", list), flag,
           "write for example 3,4,9");
    }
    steps.push_back(step);
  }
  return steps;
}

// STEP:RANK:UNIT:MICRO_BATCH:forward|backward:VALUE
std::optional<InjectFlag> InjectedValue(const std::string& text, const char* flag) {
  if (text.empty()) return std::nullopt;
  const std::vector<std::string> parts = Split(text, ':');
  const auto number = [](const std::string& part, auto& to) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), to);
    return error == std::errc() && end == part.data() + part.size();
  };
  InjectFlag inject;
  bool good = parts.size() == 6;
  if (good) {
    int64_t* const counts[] = {&inject.step, &inject.rank, &inject.unit, &inject.micro_batch};
    for (size_t i = 0; i < 4; ++i) good = good && number(parts[i], *counts[i]) && *counts[i] >= 0;
    inject.backward = parts[4] == "backward";
    good = good && (inject.backward || parts[4] == "forward") && number(parts[5], inject.value);
  }
  if (!good) {
    Fail("USE002", fmt::format("\"{}\" names no value", text), flag,
         "write step, rank, unit and micro-batch, each counted from 0, the pass and the value: 7:1:2:0:forward:nan");
  }
  return inject;
}

void CheckRecompute(const TrainFlags& f) {
  const auto one_of = [](const std::string& value, const char* first, const char* second, const char* flag) {
    if (value.empty() || value == first || value == second) return;
    Fail("USE002", fmt::format("\"{}\" is neither {} nor {}", value, first, second), flag,
         fmt::format("pass {} or {}, or remove the flag", first, second));
  };
  one_of(f.recompute_granularity, "full", "selective", "--recompute-granularity");
  one_of(f.recompute_method, "uniform", "block", "--recompute-method");
  if (!f.recompute_method.empty() && f.recompute_granularity != "full") {
    Fail("USE004", "--recompute-method is of whole layers", "--recompute-method",
         "pass --recompute-granularity full with it, or remove it");
  }
  if (f.recompute_num_layers && f.recompute_method.empty()) {
    Fail("USE004", "--recompute-num-layers counts what --recompute-method names", "--recompute-num-layers",
         "pass --recompute-method uniform or block with it");
  }
  AtLeast(f.recompute_num_layers.value_or(1), 1, "--recompute-num-layers");
}

void CheckActivations(const ActivationFlags& activations) {
  if (!(activations.hidden_dropout >= 0 && activations.hidden_dropout < 1)) {
    Fail("USE002", fmt::format("{} is no probability of dropping: 0 <= P < 1", activations.hidden_dropout),
         "--hidden-dropout", "pass for example 0.1");
  }
  if (activations.attention_dropout != 0) {
    Fail("USE002",
         fmt::format("attention dropout {} is not supported: the fused attention kernels have none",
                     activations.attention_dropout),
         "--attention-dropout", "pass 0 or remove the flag; --hidden-dropout works");
  }
}

void CheckReports(const TrainOptions& o) {
  if (o.log_level != "debug" && o.log_level != "info" && o.log_level != "warning" && o.log_level != "error") {
    Fail("USE002", fmt::format("\"{}\" is no level", o.log_level), "--log-level", "pass debug, info, warning or error");
  }
  if (o.peak_tflops && !(*o.peak_tflops > 0)) {
    Fail("USE002", fmt::format("{} is no peak", *o.peak_tflops), "--peak-tflops", "pass 1e12 operations a second");
  }
}

void CheckTrain(const TrainOptions& o) {
  if (o.deepspeed_config.empty()) {
    Fail("USE003", "the config is missing", "--deepspeed_config", "pass --deepspeed_config ds_config.json");
  }
  if (o.data_path.empty()) {
    Fail("USE003", "the tokens are missing", "--data-path",
         "make them with trireme data, then pass --data-path PREFIX");
  }
  AtLeast(o.seq_length, 1, "--seq-length");
  AtLeast(o.train_iters, 0, "--train-iters");
  AtLeast(o.save_interval, 0, "--save-interval");
  AtLeast(o.log_interval.value_or(1), 1, "--log-interval");
  AtLeast(o.eval_interval, 0, "--eval-interval");
  AtLeast(o.eval_iters, 0, "--eval-iters");
  CheckSplit(o.split);
  CheckFill(o.fill);
  CheckRecompute(o.fill);
  if (!o.device.empty() && o.device != "cpu" && o.device != "cuda") {
    Fail("USE002", fmt::format("\"{}\" is no device", o.device), "--device", "pass cpu or cuda");
  }
  CheckActivations(o.activations);
  CheckReports(o);
  if (o.save_interval > 0 && o.save.empty()) {
    Fail("USE004", "--save-interval without --save has nowhere to save", "--save-interval", "pass --save DIR");
  }
}

// "PREFIX", "PREFIX PREFIX ..." or "WEIGHT PREFIX WEIGHT PREFIX ...": engine/data reads the blends.
void SetDataPath(const std::vector<std::string>& words, TrainOptions& o) {
  if (words.empty()) return;
  double weight = 0;
  const std::string& first = words.front();
  const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), weight);
  const bool weighted = words.size() % 2 == 0 && error == std::errc() && end == first.data() + first.size();
  o.data_path = weighted ? words[1] : first;
  if (words.size() > 1) o.data_blend = words;
}

}  // namespace

std::optional<DType> ParseWeightsDType(const std::string& text, const std::string& flag) {
  if (text.empty()) return std::nullopt;
  const std::optional<DType> dtype = ParseDType(text);
  const bool floating = dtype && (*dtype == DType::kFloat64 || *dtype == DType::kFloat32 ||
                                  *dtype == DType::kBFloat16 || *dtype == DType::kFloat16);
  if (!floating)
    Fail("USE002", fmt::format("\"{}\" is no type of weights", text), flag, "pass fp32, bf16, fp16 or fp64");
  return dtype;
}

TrainOptions ParseTrainFlags(const std::vector<std::string>& args) {
  TrainTable table;
  table.set.Parse(args);
  TrainOptions o = table.o;
  if (o.help) return o;
  o.inject_overflow = Steps(table.inject_overflow, "--inject-overflow");
  o.inject_value = InjectedValue(table.inject_value, "--inject-value");
  o.deepspeed_config = ConfigPath(table.deepspeed);
  o.train_iters = table.train_iters.value_or(0);
  o.fill.train_iters = table.train_iters;
  SetDataPath(table.data_path, o);
  o.save_hf_dtype = ParseWeightsDType(table.save_hf_dtype, "--save-hf-dtype");
  CheckTrain(o);
  return o;
}

namespace {

constexpr int64_t kMostDeviceGib = 1 << 20;

// What is written must not be what is read.
void CheckPlanPaths(const PlanOptions& o, bool cluster_given) {
  if (cluster_given && o.cluster.empty()) {
    Fail("USE002", "the name is empty", "--cluster", "name a description, or leave the flag out");
  }
  for (const auto& [flag, file] : {std::pair("--suggest", &o.suggest), std::pair("--html", &o.html)}) {
    std::error_code none;
    if (file->empty() || !std::filesystem::equivalent(*file, o.deepspeed_config, none)) continue;
    Fail("USE004", fmt::format("{} is the config that is planned for, and would be written over", *file), flag,
         "name another file");
  }
}

}  // namespace

PlanOptions ParsePlanFlags(const std::vector<std::string>& args) {
  PlanTable table;
  table.set.Parse(args);
  PlanOptions o = table.o;
  if (o.help) return o;
  const std::string flag = ConfigPath(table.deepspeed);
  if (!flag.empty() && !table.positional.empty()) {
    Fail("USE004", fmt::format("two configs: {} and {}", table.positional, flag), "", "keep one");
  }
  o.deepspeed_config = flag.empty() ? table.positional : flag;
  if (o.deepspeed_config.empty()) {
    Fail("USE003", "the config is missing", "", "write trireme plan ds_config.json --model_name gpt-1.3b");
  }
  if (!o.suggest.empty() && o.cluster.empty()) {
    Fail("USE003", "no cluster: which layout is fastest depends on the machine", "--suggest",
         "name it with --cluster; a wrong name lists those that are described");
  }
  if (!o.html.empty() && o.cluster.empty()) {
    Fail("USE004", "--html draws a step over time, which no machine is named for", "--html",
         "pass --cluster too: a name of configs/clusters, or a file");
  }
  CheckPlanPaths(o, table.set.Given("cluster"));
  if (const double gib = o.gpu_memory_gib.value_or(1); !(gib > 0) || gib > kMostDeviceGib) {
    Fail("USE002", fmt::format("{} GiB is no memory of a GPU", gib), "--gpu-memory-gib",
         fmt::format("write a number above 0 and up to {}", kMostDeviceGib));
  }
  o.fill.for_plan = true;
  AtLeast(o.num_nodes.value_or(1), 1, "--num_nodes");
  AtLeast(o.num_gpus.value_or(1), 1, "--num_gpus");
  AtLeast(o.seq_length, 1, "--seq-length");
  AtLeast(o.fill.train_iters.value_or(0), 0, "--train-iters");
  CheckActivations(o.activations);
  CheckFill(o.fill);
  CheckRecompute(o.fill);
  return o;
}

BenchOptions ParseBenchFlags(const std::vector<std::string>& args) {
  BenchTable table;
  table.set.Parse(args);
  BenchOptions o = table.o;
  if (o.help) return o;
  if (o.model.model_name.empty() && o.init_from.empty() && !o.model.num_layers) {
    Fail("USE003", "the model is missing", "--model_name",
         "pass --model_name gpt-1.3b, or --num-layers, --hidden-size and --num-attention-heads");
  }
  AtLeast(o.num_gpus.value_or(1), 1, "--num_gpus");
  AtLeast(o.global_batch_size.value_or(1), 1, "--global-batch-size");
  AtLeast(o.micro_batch_size, 1, "--micro-batch-size");
  AtLeast(o.seq_length, 1, "--seq-length");
  AtLeast(o.steps, 2, "--steps");
  AtLeast(o.warmup, kFirstUntracedStep, "--warmup");
  return o;
}

void CheckLocalRank(int64_t flag, std::optional<int64_t> environment) {
  if (flag <= 0 || environment) return;
  Fail("USE005", fmt::format("--local_rank is {}, and LOCAL_RANK, which decides, is not set", flag), "--local_rank",
       fmt::format("start the ranks with trireme launch, or set LOCAL_RANK={} for this one", flag));
}

std::string TrainHelp() { return TrainTable().set.Help(); }
std::string PlanHelp() { return PlanTable().set.Help(); }
std::string BenchHelp() { return BenchTable().set.Help(); }

}  // namespace trireme
