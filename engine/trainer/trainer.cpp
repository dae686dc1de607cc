#include "engine/trainer/trainer.h"

#include <ATen/Context.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/reader.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/data/sampler.h"
#include "engine/schedule/compile.h"
#include "engine/schedule/make_program.h"
#include "engine/schedule/verify.h"
#include "engine/trainer/checkpointing.h"
#include "engine/trainer/run_texts.h"

namespace trireme {
namespace {

// A 16-bit run may meet a bad batch; no change of scale will cure this many in a row without a loss scaler.
constexpr int64_t kMaxConsecutiveSkips = 50;

CompiledProgram CompileFor(const Plan& plan, ProgramKind kind, int rank) {
  return Compile(MakeProgram(plan, kind, rank), OptionsOf(plan));
}

// Ranks of one pipeline rank run the same instructions: two of each kind show every order that matters.
void RequireSound(const Plan& plan, ProgramKind kind, int own_rank, const CompiledProgram& own) {
  std::vector<CompiledProgram> ranks;
  const Topology& topology = plan.topology;
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    const Topology::Coordinate at = topology.CoordinateOf(rank);
    if (at.dp_rank > 1 || at.tp_rank > 1) continue;
    const bool like_own = at.pp_rank == topology.CoordinateOf(own_rank).pp_rank;
    ranks.push_back(like_own ? own : CompileFor(plan, kind, rank));
    ranks.back().rank = rank;
  }
  const VerifyReport report = Verify(plan, ranks);
  TRIREME_CHECK(report.ok(), report.problems.empty() ? "" : report.problems.front());
}

}  // namespace

Trainer::Trainer(const TrainerSetup& setup, RankWorld world) : setup_(setup), world_(std::move(world)) {
  PlanInputs inputs;
  inputs.world_size = world_.world_size;
  inputs.sequence_length = setup_.sequence_length;
  inputs.decay_all = setup_.decay_all;
  inputs.fp64 = setup_.config.fp64;
  inputs.recompute = setup_.recompute;
  inputs.hidden_dropout = setup_.hidden_dropout;
  plan_ = MakePlan(setup_.config, setup_.model, inputs);
  CompiledProgram train = CompileFor(plan_, ProgramKind::kTrain, world_.rank),
                  eval = CompileFor(plan_, ProgramKind::kEval, world_.rank);
  RequireSound(plan_, ProgramKind::kTrain, world_.rank, train);
  RequireSound(plan_, ProgramKind::kEval, world_.rank, eval);
  const VerifyReport mixed = VerifySequence(plan_, {&train, &eval, &eval, &train, &train});
  TRIREME_CHECK(mixed.ok(), mixed.problems.empty() ? "" : mixed.problems.front());
  AccountMemory(plan_);
  if (setup_.deterministic) at::globalContext().setDeterministicAlgorithms(true, false);
  state_ = std::make_unique<RankState>(plan_, world_.rank, world_.device);
  updater_ =
      std::make_unique<Updater>(setup_.config.optimizer, setup_.config.scheduler, setup_.train_iters, world_.device);
  ExecutorParts parts;
  parts.plan = &plan_;
  parts.state = state_.get();
  parts.updater = updater_.get();
  groups_ = MakeGroups(world_, plan_);
  parts.world = groups_.world;
  parts.dp = groups_.dp;
  parts.tp = groups_.tp;
  parts.pp = groups_.pp;
  parts.tie = groups_.tie;
  parts.gradient_clipping = std::max(0.0, setup_.config.gradient_clipping);
  parts.dropout_seed = static_cast<uint64_t>(setup_.config.seed);
  executor_ = std::make_unique<Executor>(parts, std::move(train), std::move(eval));
}

Trainer::~Trainer() = default;

StepInputs Trainer::InputsOf(TokenFill fill) const {
  return {std::move(fill), steps_started_, /*skip_non_finite=*/true};
}

void Trainer::StartStep(TokenFill fill) {
  pending_.push_back(executor_->Run(ProgramKind::kTrain, InputsOf(std::move(fill))));
  ++steps_started_;
  consumed_samples_ += plan_.batch.train_batch_size;
}

StepResult Trainer::FinishStep() {
  TRIREME_CHECK(!pending_.empty(), "FinishStep without a started step");
  const StepResult result = executor_->Result(pending_.front());
  pending_.erase(pending_.begin());
  ++steps_finished_;
  applied_steps_ = result.applied_steps;
  skipped_steps_ = result.skipped_steps;
  CheckResult(result);
  return result;
}

void Trainer::CheckResult(const StepResult& result) {
  consecutive_skips_ = result.skipped ? consecutive_skips_ + 1 : 0;
  if (!result.skipped) return;
  const bool sixteen_bit = SizeOf(plan_.dtypes.compute) == 2;
  if (!sixteen_bit) {
    throw Error(ErrorCode::kCheckFailed, "TRN005",
                fmt::format("loss {} or gradient norm {} is not finite; the weights were not changed by this step",
                            result.loss, result.grad_norm),
                fmt::format("step {}", steps_finished_ - 1),
                "lower the learning rate or look at the data of this step; resume from the last checkpoint");
  }
  log::Warn("step {}: skipped, loss {} or gradient norm {} is not finite ({} skipped so far)", steps_finished_ - 1,
            result.loss, result.grad_norm, result.skipped_steps);
  if (consecutive_skips_ >= kMaxConsecutiveSkips) {
    throw Error(ErrorCode::kCheckFailed, "TRN006",
                fmt::format("{} steps in a row were skipped: loss or gradients are not finite", consecutive_skips_),
                fmt::format("step {}", steps_finished_ - 1),
                "resume from an earlier checkpoint with a lower learning rate");
  }
}

double Trainer::Forward(TokenFill fill, int64_t micro_batch) {
  return executor_->ForwardPiece(InputsOf(std::move(fill)), micro_batch);
}

void Trainer::Backward(int64_t micro_batch) { executor_->BackwardPiece(micro_batch); }

void Trainer::Step() {
  pending_.push_back(executor_->StepPiece());
  ++steps_started_;
  consumed_samples_ += plan_.batch.train_batch_size;
}

TokenFill Trainer::FillFrom(std::shared_ptr<const data::BatchSource> source, int64_t first_sample) const {
  const int64_t micro = plan_.batch.micro_batch_size, row = plan_.batch.sequence_length + 1,
                dp_rank = state_->dp_rank(), dp_size = plan_.topology.dp_size;
  return [=, source = std::move(source)](int64_t micro_batch, const at::Tensor& tokens) {
    const int64_t first = data::FirstSample(first_sample, micro_batch, dp_rank, dp_size, micro);
    int32_t* ids = tokens.mutable_data_ptr<int32_t>();
    source->Fill(first, micro, {ids, static_cast<size_t>(micro * row)});
  };
}

Evaluation Trainer::Evaluate(std::shared_ptr<const data::BatchSource> source, int64_t num_batches) {
  const int64_t samples = source->num_samples(), global = plan_.batch.train_batch_size;
  const int64_t all = (samples + global - 1) / global;
  const int64_t batches = num_batches > 0 ? std::min(num_batches, all) : all;
  const int64_t micro = plan_.batch.micro_batch_size, row = plan_.batch.sequence_length + 1,
                dp_rank = state_->dp_rank(), dp_size = plan_.topology.dp_size;
  double loss_sum = 0, tokens = 0;
  const auto add = [&](int64_t run) {
    const StepResult result = executor_->Result(run);
    loss_sum += result.eval_loss_sum;
    tokens += result.eval_tokens;
  };
  int64_t before = -1;
  for (int64_t b = 0; b < batches; ++b) {
    const auto fill = [=](int64_t micro_batch, const at::Tensor& out) {
      const int64_t first = data::FirstSample(b * global, micro_batch, dp_rank, dp_size, micro);
      const int64_t count = std::clamp<int64_t>(samples - first, 0, micro);
      int32_t* ids = out.mutable_data_ptr<int32_t>();
      if (count > 0) source->Fill(first, count, {ids, static_cast<size_t>(count * row)});
      std::fill(ids + count * row, ids + micro * row, -1);  // past the end: no token, no loss
    };
    const int64_t run = executor_->Run(ProgramKind::kEval, {fill, steps_started_, true});
    if (before >= 0) add(before);
    before = run;
  }
  if (before >= 0) add(before);
  return {tokens > 0 ? loss_sum / tokens : 0, static_cast<int64_t>(tokens)};
}

// What these make on the default stream must be there before a lane's first instruction, which waits for nothing.
void Trainer::InitialiseWeights(uint64_t seed) {
  state_->InitialiseWeights(seed);
  Synchronise(device());
}

void Trainer::LoadHuggingFace(const std::filesystem::path& folder) {
  LoadInitialWeights(*state_, *checkpoint::CheckpointReader::Open(folder));
  GatherWeights(*state_, *groups_.dp);
  Synchronise(device());
}

std::string Trainer::Save(const std::filesystem::path& root, const std::optional<data::DataPosition>& position) {
  TRIREME_CHECK(pending_.empty(), "a step is unfinished");
  executor_->Drain();
  const at::Tensor scalars = state_->step_state().cpu();
  const double* s = scalars.const_data_ptr<double>();
  SaveRequest request;
  request.root = root;
  request.tag = "global_step" + std::to_string(steps_finished_);
  request.step = steps_finished_;
  request.model_config = ModelToJson(plan_.model);
  request.optimizer = OptimizerToJson(setup_.config.optimizer);
  request.trainer_state = CountersToJson({steps_finished_, static_cast<int64_t>(s[kAppliedSteps]),
                                          static_cast<int64_t>(s[kSkippedSteps]), consumed_samples_, s[kLossScale]});
  if (position) {
    data::DataPosition now = *position;
    now.consumed_samples = consumed_samples_;
    request.data_position = data::PositionToJson(now);
  }
  SaveCheckpoint(*state_, setup_.config.optimizer, world_, request);
  return request.tag;
}

std::optional<data::DataPosition> Trainer::Load(const std::filesystem::path& root) {
  const std::unique_ptr<checkpoint::CheckpointReader> reader = checkpoint::CheckpointReader::Open(root);
  const checkpoint::CheckpointInfo& info = reader->info();
  for (const std::string& warning : info.warnings) log::Warn("{}", warning);
  const std::string where = info.directory.string();
  RequireRunState(info.format, where);
  RequireSameModel(ModelFromJson(info.model_config, where + ": model description"), plan_.model, where);
  const std::string optimizer = OptimizerToJson(setup_.config.optimizer);
  if (info.optimizer != optimizer)
    log::Warn("{} was saved with optimizer {}, this run has {}", where, info.optimizer, optimizer);
  const RunCounters counters = CountersFromJson(info.trainer_state, where + ": trainer state");
  LoadTensors(*state_, setup_.config.optimizer, *reader, /*with_moments=*/true);
  GatherWeights(*state_, *groups_.dp);
  at::Tensor scalars = state_->step_state().cpu();
  double* s = scalars.mutable_data_ptr<double>();
  s[kAppliedSteps] = static_cast<double>(counters.applied_steps);
  s[kSkippedSteps] = static_cast<double>(counters.skipped_steps);
  s[kLossScale] = counters.loss_scale;
  state_->step_state().copy_(scalars);
  Synchronise(device());
  applied_steps_ = counters.applied_steps;
  skipped_steps_ = counters.skipped_steps;
  steps_started_ = steps_finished_ = counters.steps;
  consumed_samples_ = counters.consumed_samples;
  if (info.data_position.empty()) return std::nullopt;
  return data::PositionFromJson(info.data_position, where + ": data position");
}

}  // namespace trireme
