// `trireme train`: one rank of the trainer.
#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/huggingface.h"
#include "engine/base/bytes.h"
#include "engine/base/env.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json_text.h"
#include "engine/base/log.h"
#include "engine/base/progress_note.h"
#include "engine/base/strings.h"
#include "engine/base/version.h"
#include "engine/cli/check_command.h"
#include "engine/cli/commands.h"
#include "engine/cli/leave.h"
#include "engine/cli/progress.h"
#include "engine/data/dynamic_loader.h"
#include "engine/data/sampler.h"
#include "engine/data/tokenizer.h"
#include "engine/execute/trace.h"
#include "engine/kernels/kernels.h"
#include "engine/plan/notes.h"
#include "engine/trainer/trainer.h"
#include "parsers/cli.h"
#include "parsers/model_config.h"
#include "parsers/schema/resolved.h"

namespace trireme::cli {
namespace {

// Steps that --trace records: late enough that allocators and caches are warm, few enough to read.
constexpr int64_t kFirstTracedStep = 3, kTracedSteps = 3;
static_assert(kFirstTracedStep + kTracedSteps + 1 <= kFirstUntracedStep);

struct Resolved {
  Config config;
  ModelSpec model;
};

// Everything that can be wrong in files and flags, said before any device or other rank is touched.
Resolved Resolve(const TrainOptions& options, int64_t world_size, bool first_rank) {
  Diagnostics diagnostics;
  Resolved resolved;
  const int64_t tp_size = options.fill.tensor_model_parallel_size.value_or(1);
  ModelFlags flags = options.model;
  std::optional<data::TokenizerInfo> tokenizer;
  if (flags.num_layers && !flags.vocab_size && !options.data_path.empty()) {
    tokenizer = data::LoadTokenizerInfo(options.data_path);
    if (tokenizer) flags.vocab_size = tokenizer->vocab_size;  // a GPT of one's own takes the data's vocabulary
  }
  resolved.model = ResolveModel(flags, options.init_from, tp_size, diagnostics);
  if (tokenizer) {  // and the token between its documents
    resolved.model.bos_token_id = tokenizer->eod_id;
    resolved.model.eos_token_ids = {tokenizer->eod_id};
  }
  ParseResult parsed = ParseConfigFile(options.deepspeed_config, options.fill, world_size, resolved.model.hidden_size);
  for (const Problem& problem : parsed.diagnostics.problems()) diagnostics.Add(problem);
  diagnostics.ThrowIfErrors();
  if (first_rank && !diagnostics.problems().empty()) fmt::print(stderr, "{}", diagnostics.Render());
  resolved.config = parsed.config;
  PadVocabulary(resolved.model, resolved.config.tensor_parallel.tp_size);
  return resolved;
}

[[noreturn]] void CannotWrite(const std::string& flag, const std::string& path, const std::string& why,
                              const std::string& fix) {
  throw Error(ErrorCode::kEnvironment, "TRN030", why, flag + " " + path, fix);
}

// A file that is written at the end must be writable at the start, and must not be a device.
void CheckFile(const std::string& flag, const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return;
  std::error_code ignored;
  const bool existed = fs::exists(path, ignored);
  if (existed && !fs::is_regular_file(path, ignored)) {
    CannotWrite(flag, path, "is there and is no regular file", "name a file");
  }
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr)
    CannotWrite(flag, path, std::string("cannot be written: ") + std::strerror(errno),
                "name a file in a folder that exists");
  std::fclose(file);
  if (!existed) fs::remove(path, ignored);
}

// The folder of checkpoints: it can be written, and holds none of another run.
void CheckSaveFolder(const TrainOptions& options) {
  namespace fs = std::filesystem;
  if (options.save.empty()) return;
  const fs::path folder = options.save;
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure || !fs::is_directory(folder)) {
    CannotWrite("--save", options.save, failure ? "cannot be made: " + failure.message() : "is no folder",
                "name a folder that can be written");
  }
  CheckFile("--save", (folder / (".probe." + std::to_string(::getpid()))).string());
  if (options.load.empty() && fs::exists(folder / "latest")) {
    throw Error(ErrorCode::kCheckpoint, "TRN014",
                "holds checkpoints of another run (latest: " +
                    std::string(Trim(ReadFile(folder / "latest", ErrorCode::kCheckpoint))) +
                    "), and this one would start from the beginning and replace them",
                "--save " + options.save,
                "add --load " + options.save + " to go on with that run, or name another folder");
  }
}

// --dump-config: what every key of the config was taken to be, and from where.
void DumpConfig(const std::string& path, const Config& config) {
  std::string text = "[";
  for (const Origin& origin : config.origins) {
    text += fmt::format("{}\n{{\"key\": {}, \"value\": {}, \"source\": {}}}", text.size() == 1 ? "" : ",",
                        JsonText(origin.key), JsonText(origin.value), JsonText(origin.source));
  }
  WriteFileDurably(path, text + "\n]\n", ErrorCode::kEnvironment);
}

log::Level LowestLevel(const std::string& level) {
  if (level == "debug") return log::Level::kDebug;
  if (level == "info") return log::Level::kInfo;
  return level == "warning" ? log::Level::kWarn : log::Level::kError;
}

// Each rank traces into a file of its own; "" without --trace.
std::string TracePath(const TrainOptions& options, int rank) {
  return options.trace.empty() || rank == 0 ? options.trace : options.trace + fmt::format(".rank{}", rank);
}

// What is wrong with the flags beyond their syntax.
void CheckRequest(const TrainOptions& options, const RendezvousInfo& place) {
  constexpr int64_t kMostSteps = 1'000'000'000;
  CheckLocalRank(options.local_rank, env::Integer("LOCAL_RANK"));
  if (options.train_iters < 1 || options.train_iters > kMostSteps) {
    throw Error(ErrorCode::kUsage, "TRN015",
                options.train_iters == 0 ? "is not given" : fmt::format("is {}", options.train_iters), "--train-iters",
                fmt::format("pass the number of optimizer steps, 1 to {}", kMostSteps));
  }
  CheckFile("--trace", TracePath(options, place.rank));
  if (place.rank != 0) return;
  CheckFile("--dump-config", options.dump_config);
  CheckSaveFolder(options);
  if (!options.save_hf.empty()) checkpoint::RequireNewFolder(options.save_hf);
}

int64_t BytesOf(std::optional<double> gib) { return static_cast<int64_t>(gib.value_or(0) * (1 << 30)); }

void PrintStart(const TrainOptions& options, const Trainer& trainer) {
  const Plan& plan = trainer.plan();
  log::Info("trireme {}: {} with {} parameters, {} layers x {}, {} heads, vocabulary {} ({} with padding)", Version(),
            plan.model.name, FormatCount(plan.num_parameters), plan.model.num_layers, plan.model.hidden_size,
            plan.model.num_attention_heads, plan.model.vocab_size, plan.model.padded_vocab_size);
  for (const std::string& line : Lines(ResolvedTable(trainer.config(), ResolvedRows::kNotable)))
    log::Info("  {}", line);
  for (const Origin& origin : trainer.config().origins)
    log::Debug("{} = {} ({})", origin.key, origin.value, origin.source);
  log::Info(
      "{} rank(s) on {} (pp {} x dp {} x tp {}), ZeRO-{}; batch {} = {} x {} micro-batches x {} ranks, {}{} tokens per "
      "step",
      plan.topology.world_size(), trainer.device().is_cuda() ? "GPUs" : "the CPU", plan.topology.pp_size,
      plan.topology.dp_size, plan.topology.tp_size, plan.zero_stage, plan.batch.train_batch_size,
      plan.batch.micro_batch_size, plan.batch.num_micro_batches, plan.topology.dp_size,
      plan.batch.is_dynamic() ? "up to " : "", FormatCount(plan.batch.tokens_per_step()));
  log::Info("types: compute {}, master {}, gradients add up in {} and travel in {}", Name(plan.dtypes.compute),
            Name(plan.dtypes.master), Name(plan.dtypes.accumulate), Name(plan.dtypes.communicate));
  if (std::any_of(plan.units.begin(), plan.units.end(), [](const auto& unit) { return unit.optimizer_on_host; })) {
    log::Info("Adam on the CPU runs with {}", kernels::CpuLevel());
  }
  if (trainer.config().fp16.enabled) {
    const Fp16Config& fp16 = trainer.config().fp16;
    log::Info(
        "loss scale {}{}", trainer.loss_scale(),
        fp16.loss_scale > 0
            ? ", static"
            : fmt::format(", dynamic: doubles after {} steps without overflow, halves from overflow number {} on, "
                          "not below {}",
                          fp16.loss_scale_window, LossScalingOf(trainer.config()).hysteresis, fp16.min_loss_scale));
  }
  log::Info("planned per rank: {} in all ({} of it for the step); allocated {}; {} steps to {}",
            FormatBytes(trainer.planned().total()),
            FormatBytes(trainer.planned().arena + trainer.planned().workspace + trainer.planned().pool),
            FormatBytes(trainer.allocated_bytes()), options.train_iters,
            options.save.empty() ? "no checkpoint folder (--save)" : options.save);
  for (const std::string& note : LayoutNotes(plan, trainer.world().ranks_per_node)) log::Warn("{}", note);
}

class Run {
 public:
  Run(const TrainOptions& options, Trainer& trainer, int64_t log_interval)
      : options_(options),
        trainer_(trainer),
        first_rank_(trainer.world().rank == 0),
        progress_(trainer, options.train_iters, first_rank_ ? log_interval : 0, first_rank_ ? options.log_json : "",
                  options.peak_tflops ? options.peak_tflops
                                      : PeakTflopsOf(trainer.device(), trainer.plan().dtypes.compute)) {}

  void Restore(const Config& config) {
    if (!options_.load.empty()) {
      saved_ = trainer_.Load(options_.load);
      log::Info("resumed from {} at step {}, next sample {}", options_.load, trainer_.steps_finished(),
                trainer_.consumed_samples());
    } else if (!options_.init_from.empty()) {
      trainer_.LoadHuggingFace(options_.init_from);
      log::Info("initial weights from {}", options_.init_from);
    } else {
      trainer_.InitialiseWeights(static_cast<uint64_t>(config.seed));
    }
  }

  void OpenData(const Config& config, const ModelSpec& model) {
    const int64_t steps_left = std::max<int64_t>(0, options_.train_iters - trainer_.steps_finished());
    data::DataRequest request;
    request.data_path = options_.data_path;
    request.blend = options_.data_blend;
    request.split = options_.split;
    request.seq_length = options_.seq_length;
    request.vocab_size = model.vocab_size;
    request.train_samples = trainer_.consumed_samples() + steps_left * config.batch.train_batch_size;
    request.seed = config.seed;
    request.no_shuffle = options_.no_shuffle;
    request.saved_num_samples = saved_ ? saved_->num_samples : 0;
    if (trainer_.plan().batch.is_dynamic()) {
      OpenDocuments(request);
    } else {
      data::TrainingData data = data::OpenTrainingData(request);
      train_ = std::move(data.train);
      validation_ = std::move(data.validation);
      position_ = data.position;
    }
    if (!Validates() && options_.eval_interval > 0) {
      log::Warn("no evaluation: {}",
                options_.no_shuffle ? "--no-shuffle trains on the whole file"
                                    : "the validation part of --split " + options_.split + " holds no whole sample");
    }
    if (!saved_) return;
    for (const std::string& difference : data::OrderDifferences(*saved_, position_))
      log::Warn("resumed data order: {}", difference);
  }

  int Train() {
    const int64_t first = trainer_.steps_finished();
    if (first >= options_.train_iters) {
      log::Warn("nothing to train: {} steps are done and --train-iters is {}", first, options_.train_iters);
      ExportModel();
      return 0;
    }
    last_time_ = Clock::now();
    for (int64_t step = first; step < options_.train_iters; ++step) {
      if (!options_.trace.empty()) Trace(step - first, options_.train_iters - first);
      trainer_.StartStep(NextBatch());
      // A GPU works on this step while the host reads the last one's result; on the CPU the step is done already.
      if (!trainer_.device().is_cuda() || trainer_.steps_started() - trainer_.steps_finished() > 1) Finish();
      if (EndsASection(step + 1)) EndSection(step + 1);
    }
    if (tracer_) WriteTrace();
    ExportModel();
    return Report(first);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Dynamic batching: each document for itself.
  void OpenDocuments(const data::DataRequest& request) {
    data::DynamicData data = data::OpenDynamicData(request, DynamicOptionsOf(trainer_.plan(), trainer_.config()));
    const data::DynamicBatchOptions& batches = data.train->options();
    log::Info("dynamic batching: {} samples of up to {} tokens, micro-batches of up to {} tokens in {} to {} rows{}",
              data.train->num_samples(), batches.longest, batches.max_tokens, batches.min_rows, batches.max_rows,
              data.cut_documents > 0 ? fmt::format("; {} longer documents are cut", data.cut_documents) : "");
    const data::DynamicStep next = data.train->At(trainer_.consumed_samples());
    int64_t tokens = 0, padded = 0;
    for (const int64_t sample : next.samples) tokens += data.train->samples().Length(sample);
    for (const MicroBatchShape& pack : next.packs) padded += pack.tokens();
    log::Info("the next step has {} samples of {} tokens, {:.1f} % of what it computes", next.num_samples(), tokens,
              100 * static_cast<double>(tokens) / static_cast<double>(padded));
    documents_ = std::move(data.train);
    validation_documents_ = std::move(data.validation);
    position_ = std::move(data.position);
  }
  bool Validates() const { return validation_ || validation_documents_; }
  StepBatch NextBatch() const {
    const int64_t position = trainer_.consumed_samples();
    if (documents_) return trainer_.BatchFrom(documents_, position);
    return {.fill = trainer_.FillFrom(train_, position), .num_samples = trainer_.plan().batch.train_batch_size};
  }

  bool Evaluates(int64_t done) const {
    return Validates() && options_.eval_interval > 0 &&
           (done % options_.eval_interval == 0 || done == options_.train_iters);
  }
  bool Saves(int64_t done) const {
    return !options_.save.empty() &&
           ((options_.save_interval > 0 && done % options_.save_interval == 0) || done == options_.train_iters);
  }
  bool EndsASection(int64_t done) const { return Evaluates(done) || Saves(done) || done == options_.train_iters; }

  void EndSection(int64_t done) {
    while (trainer_.steps_started() > trainer_.steps_finished()) Finish();
    if (Evaluates(done)) {
      const Evaluation evaluation = documents_ ? trainer_.Evaluate(validation_documents_, options_.eval_iters)
                                               : trainer_.Evaluate(validation_, options_.eval_iters);
      if (first_rank_) {
        fmt::print("validation at step {} | loss {:.4f} | perplexity {:.3f} | {} tokens\n", done, evaluation.loss,
                   std::exp(evaluation.loss), FormatCount(evaluation.tokens));
        std::fflush(stdout);
      }
    }
    if (Saves(done)) {
      const auto begin = Clock::now();
      const std::string tag = trainer_.Save(options_.save, position_);
      log::Info("saved {}/{} in {}", options_.save, tag,
                FormatDuration(std::chrono::duration<double>(Clock::now() - begin).count()));
    }
    last_time_ = Clock::now();
  }

  void Finish() {
    StepRecord record;
    record.step = trainer_.steps_finished();
    record.result = trainer_.FinishStep();
    record.lr =
        trainer_.RatesOf(record.result.applied_steps - (record.result.skipped ? 0 : 1)).lr * record.result.rate_factor;
    record.seconds = std::chrono::duration<double>(record.result.completed - last_time_).count();
    last_time_ = record.result.completed;
    progress_.Add(record);
  }

  // Begins and ends the trace, before step `since_start` of this run.
  void Trace(int64_t since_start, int64_t steps) {
    if (since_start == std::min(kFirstTracedStep, steps - 1)) {
      trainer_.executor().Drain();
      tracer_ = std::make_shared<Tracer>(trainer_.world().rank, trainer_.device().is_cuda(), trainer_.plan());
      trainer_.executor().set_tracer(tracer_);
    }
    if (!tracer_) return;
    if (traced_steps_ == kTracedSteps) {
      WriteTrace();
    } else {
      ++traced_steps_;
    }
  }

  void WriteTrace() {
    trainer_.executor().Drain();
    trainer_.executor().set_tracer(nullptr);
    const std::string path = TracePath(options_, trainer_.world().rank);
    tracer_->Write(path);
    tracer_.reset();
    log::Info("trace of {} step(s) in {}: open it in ui.perfetto.dev or chrome://tracing", traced_steps_, path);
  }

  // --save-hf: weights and tokenizer, which comes from where the weights came from, else from the data.
  void ExportModel() {
    if (options_.save_hf.empty()) return;
    std::vector<checkpoint::Companion> companions;
    if (first_rank_ && !options_.init_from.empty()) companions = checkpoint::TokenizerFiles(options_.init_from);
    if (first_rank_ && companions.empty()) {
      const auto tokenizer = data::LoadTokenizer(options_.data_path);
      if (tokenizer && !tokenizer->definition().empty()) {
        companions.push_back({"tokenizer.json", tokenizer->definition()});
      }
    }
    trainer_.SaveHuggingFace(options_.save_hf, options_.save_hf_dtype, std::move(companions));
    log::Info("model in {}, a Hugging Face folder", options_.save_hf);
  }

  int Report(int64_t first) {
    const int64_t done = trainer_.steps_finished();
    // Rank 0 holds the store: it leaves last.
    if (trainer_.world().store) trainer_.world().store->Barrier("end of training", std::chrono::minutes(10));
    const SkipCounts& skips = trainer_.skips();
    if (skips.calibrating + skips.later > 0) {
      log::Info("skipped {} steps while the loss scale was being found, {} later; the loss scale is {} now",
                skips.calibrating, skips.later, trainer_.loss_scale());
    }
    if (const double most = trainer_.config().gradient_clipping; most > 0) {
      log::Info("clipped {} of {} steps to a gradient norm of {}", trainer_.clipped_steps(), done - first, most);
    }
    log::Info("trained {} steps, {} in all, {} samples; peak memory {} (planned {})", done - first, done,
              trainer_.consumed_samples(), FormatBytes(PeakMemoryBytes(trainer_.device())),
              FormatBytes(trainer_.planned().total()));
    const MeasuredMemory measured = trainer_.MeasureMemory();
    log::Info("memory of rank {}\n{}", trainer_.world().rank,
              RenderMemory(trainer_.planned(), &measured, trainer_.device().is_cuda()));
    return 0;
  }

  const TrainOptions& options_;
  Trainer& trainer_;
  bool first_rank_;
  Progress progress_;
  std::optional<data::DataPosition> saved_;
  std::shared_ptr<const data::BatchSource> train_, validation_;
  std::shared_ptr<const data::DynamicBatches> documents_, validation_documents_;  // instead, with dynamic batching
  data::DataPosition position_;
  std::shared_ptr<Tracer> tracer_;
  int64_t traced_steps_ = 0;
  Clock::time_point last_time_;
};

}  // namespace

// What each lane is at, for a launcher that finds this rank killed.
class ProgressOfLanes {
 public:
  explicit ProgressOfLanes(const std::string& path) : note_(path) {}
  void set_plan(const Plan& plan) { plan_ = &plan; }  // before the first instruction
  void Begin(const Instruction& instruction, int64_t step) {
    note_.Set(static_cast<size_t>(instruction.lane),
              fmt::format("step {}: {} (lane {})", step + 1, Describe(instruction, *plan_), Name(instruction.lane)));
  }

 private:
  static_assert(kNumLanes <= ProgressNote::kLines);
  ProgressNote note_;
  const Plan* plan_ = nullptr;
};

int RunTrain(Arguments arguments) {
  const TrainOptions options = ParseTrainFlags(arguments);
  if (options.help) {
    fmt::print("{}", TrainHelp());
    return 0;
  }
  const RendezvousInfo place = RendezvousInfo::FromEnvironment();
  CheckRequest(options, place);
  if (place.rank == 0) log::SetRank("", LowestLevel(options.log_level));
  const Resolved resolved = Resolve(options, place.world, place.rank == 0);
  if (place.rank == 0 && !options.dump_config.empty()) DumpConfig(options.dump_config, resolved.config);
  RankWorld world = RankWorld::FromEnvironment(options.device, options.oversubscribe);
  TrainerSetup setup;
  setup.config = resolved.config;
  setup.model = resolved.model;
  setup.sequence_length = options.seq_length;
  setup.train_iters = options.train_iters;
  setup.decay_all = options.decay_all;
  setup.deterministic = options.deterministic;
  setup.inject_overflow = options.inject_overflow;
  if (const auto& inject = options.inject_value) {
    setup.inject_values = {{.step = inject->step,
                            .rank = static_cast<int>(inject->rank),
                            .value = {.unit = static_cast<int>(inject->unit),
                                      .micro_batch = inject->micro_batch,
                                      .backward = inject->backward,
                                      .value = inject->value}}};
  }
  setup.hidden_dropout = options.activations.hidden_dropout;
  setup.memory_limits = {BytesOf(options.device_memory_gib), BytesOf(options.host_memory_gib)};
  std::optional<ProgressOfLanes> progress;
  if (const auto path = env::Text("TRIREME_PROGRESS_FILE")) {
    progress.emplace(*path);
    setup.before_instruction = [&](const Instruction& instruction, int64_t step) {
      progress->Begin(instruction, step);
    };
  }
  setup.plan_command = [&, nodes = CeilDiv(world.world_size, std::max(1, world.ranks_per_node)),
                        gpus = std::min(world.world_size, world.ranks_per_node)](const std::vector<std::string>& keys) {
    return PlanCommandOf(arguments, options.deepspeed_config, nodes, gpus, keys);
  };
  Trainer trainer(setup, std::move(world));
  if (progress) progress->set_plan(trainer.plan());
  return RunOrLeave([&] {
    PrintStart(options, trainer);
    Run run(options, trainer, options.log_interval.value_or(resolved.config.steps_per_print));
    run.Restore(resolved.config);
    run.OpenData(resolved.config, resolved.model);
    return run.Train();
  });
}

}  // namespace trireme::cli
