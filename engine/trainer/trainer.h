// One rank of a training run: owns config, plan, groups, model, optimizer. No globals: many can live in one process.
//   Trainer trainer(setup, std::move(world));
//   trainer.StartStep(fill);  StepResult done = trainer.FinishStep();
#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/huggingface.h"
#include "engine/data/loader.h"
#include "engine/data/position.h"
#include "engine/execute/executor.h"
#include "engine/model/own_modules.h"
#include "engine/plan/plan.h"
#include "engine/trainer/dynamic_step.h"
#include "engine/trainer/memory_cures.h"
#include "engine/trainer/memory_watch.h"
#include "engine/trainer/rank_world.h"
#include "engine/trainer/replicas.h"
#include "engine/trainer/run_texts.h"
#include "engine/trainer/step_watch.h"
#include "engine/zero/rank_state.h"
#include "parsers/config.h"

namespace trireme {

// A value set by hand: a test of what follows one that is not finite.
struct InjectedStepValue {
  int64_t step = 0;  // counted from 0
  int rank = 0;
  InjectedValue value = {};
};

struct TrainerSetup {
  Config config;
  ModelSpec model;
  int64_t sequence_length = 0;
  int64_t train_iters = 0;  // length of the tables of learning rates; a later update uses the last row
  bool decay_all = false;
  bool deterministic = false;
  Recompute recompute = Recompute::kNone;
  double hidden_dropout = 0;  // probability; masks follow config.seed
  OwnModules modules = {};    // this rank's; `model` is completed from them
  // Steps, counted from 0, whose loss is multiplied by 1e38: a test of what follows an overflow.
  std::vector<int64_t> inject_overflow = {};
  std::vector<InjectedStepValue> inject_values = {};
  std::function<void(const Instruction&, int64_t step)> before_instruction = {};  // ExecutorParts
  MemoryLimits memory_limits = {};
  PlanCommand plan_command = {};                  // for errors about memory
  std::shared_ptr<PageLock> page_lock = nullptr;  // tests: RankMemoryOptions
};

struct Evaluation {
  double loss = 0;  // nats per token, mean over all
  int64_t tokens = 0;
};

class Trainer {
 public:
  Trainer(const TrainerSetup& setup, RankWorld world);
  ~Trainer();

  // Issues one training step; `fill` gives this rank's micro-batches, and once more if they have to be looked at: until
  // FinishStep has returned the step's result. FinishStep waits for the oldest step whose result was not taken. Run one
  // ahead (StartStep, StartStep, FinishStep, ...) and the device never waits for the host. A step that was skipped for
  // a value that no loss scale cures is made once more, to name where it began (first_bad_value.h); what was issued
  // after it is then issued again.
  // Throws Error when loss or gradients are not finite in fp32 or fp64 runs (TRN005), too often in 16-bit ones
  // (TRN006), or at the smallest loss scale (TRN007). Before every trireme.check_replicas_every-th step, and before a
  // checkpoint, what several ranks hold is compared (replicas.h).
  void StartStep(TokenFill fill);
  // The same where lengths differ (plan().batch.is_dynamic()), in which case every step is started so.
  void StartStep(StepBatch batch);
  StepResult FinishStep();
  int64_t steps_started() const { return steps_started_; }  // since the model's first step, skipped ones included
  int64_t steps_finished() const { return steps_finished_; }
  // As of the last finished step, or of the checkpoint.
  int64_t applied_steps() const { return applied_steps_; }
  int64_t skipped_steps() const { return skipped_steps_; }
  const SkipCounts& skips() const { return watch_.skips(); }  // of this run
  int64_t skips_in_a_row() const { return watch_.skips_in_a_row(); }
  int64_t clipped_steps() const { return watch_.clipped_steps(); }         // of this run
  const std::string& first_bad_value() const { return first_bad_value_; }  // of the last step that was looked at
  double loss_scale() const { return watch_.loss_scale(); }                // of the step after the last finished one

  // The same step by hand: forward gives the mean loss of the micro-batch on this rank.
  double Forward(TokenFill fill, int64_t micro_batch);
  void Backward(int64_t micro_batch);
  void Step();  // then FinishStep

  // Mean loss over `num_batches` global batches of `source` from its start (0: all of it). Training is not touched.
  Evaluation Evaluate(std::shared_ptr<const data::BatchSource> source, int64_t num_batches);
  // The same of sequences of different lengths; the source does not repeat.
  Evaluation Evaluate(std::shared_ptr<const data::DynamicBatches> source, int64_t num_batches);

  // The fill of a step whose global batch begins at `first_sample` of `source`; it keeps the source alive.
  TokenFill FillFrom(std::shared_ptr<const data::BatchSource> source, int64_t first_sample) const;
  // The step that begins at a position of `source`, of this rank.
  StepBatch BatchFrom(std::shared_ptr<const data::DynamicBatches> source, int64_t position) const;
  int64_t consumed_samples() const { return consumed_samples_; }

  // The families' units by `seed`; own modules from what rank 0's hold (once, before the first step).
  void InitialiseWeights(uint64_t seed);
  void LoadHuggingFace(const std::filesystem::path& folder);
  // All ranks. `dtype`: of the file; nullopt: the compute type. `companions`: rank 0.
  void SaveHuggingFace(const std::filesystem::path& folder, std::optional<DType> dtype,
                       std::vector<checkpoint::Companion> companions);
  // All ranks. Tag: global_step<N>. `position`: of the data, its consumed_samples is filled here.
  std::string Save(const std::filesystem::path& root, const std::optional<data::DataPosition>& position);
  // Any saved layout; sets counters. Returns the saved data position, if there is one.
  std::optional<data::DataPosition> Load(const std::filesystem::path& root);
  UpdateRates RatesOf(int64_t applied_steps) const { return updater_->RatesAt(applied_steps); }
  const Plan& plan() const { return plan_; }
  const Config& config() const { return setup_.config; }
  RankState& state() { return *state_; }  // after executor().Drain(): a step's result comes before its last gathers
  Executor& executor() { return *executor_; }
  RankWorld& world() { return world_; }
  const RankWorld& world() const { return world_; }
  at::Device device() const { return world_.device; }
  const MemoryAccount& planned() const { return plan_.memory_of_pp_rank[static_cast<size_t>(state_->pp_rank())]; }
  // Bytes that this rank's own buffers take: persistent, arena, workspace, tables of positions.
  int64_t allocated_bytes() const { return SumOf(memory_->device_bytes()) + planned().tables; }
  // Beside planned(): what this rank has taken so far, at its peak.
  MeasuredMemory MeasureMemory() const { return memory_watch_.Measure(*memory_); }

 private:
  std::optional<ScalerCounters> ScalerOf(const double* step_state) const;
  void RestoreScaler(const RunCounters& counters, double* step_state);
  StepInputs InputsOf(StepBatch batch) const;
  void Resume();
  void BeforeStep();
  void CompareReplicas();
  // One after the other, until `next` has no more.
  Evaluation EvaluateSteps(const std::function<std::optional<StepBatch>()>& next);
  void Allocate(CompiledProgram train, CompiledProgram eval);
  template <typename Work>
  auto Guard(const Work& work) {
    return memory_watch_.Guard(plan_, world_.rank, *memory_, cures_, work);
  }

  TrainerSetup setup_;
  RankWorld world_;
  MemoryWatch memory_watch_;
  MemoryWatch::Cures cures_;
  std::shared_ptr<RankMemory> memory_;
  RankGroups groups_;
  StepWatch watch_;
  Plan plan_;
  std::unique_ptr<RankState> state_;
  std::unique_ptr<ReplicaCheck> replicas_;
  std::unique_ptr<Updater> updater_;
  std::unique_ptr<Executor> executor_;
  int64_t steps_started_ = 0, steps_finished_ = 0, consumed_samples_ = 0;
  int64_t applied_steps_ = 0, skipped_steps_ = 0;
  struct StartedStep {
    int64_t run = 0;
    StepInputs inputs;
  };
  std::deque<StartedStep> pending_;  // whose results were not taken, oldest first
  std::string first_bad_value_;
  std::vector<TokenFill> pieces_;  // of the step by hand, by micro-batch
};

}  // namespace trireme
