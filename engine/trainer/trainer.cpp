#include "engine/trainer/trainer.h"

#include <ATen/Context.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "checkpoint/reader.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/data/sampler.h"
#include "engine/kernels/kernels.h"
#include "engine/model/autograd_layer.h"
#include "engine/schedule/compile.h"
#include "engine/schedule/make_program.h"
#include "engine/schedule/verify.h"
#include "engine/schedule/verify_units.h"
#include "engine/trainer/checkpointing.h"
#include "engine/trainer/export.h"
#include "engine/trainer/fill_layout.h"
#include "engine/trainer/first_bad_value.h"
#include "engine/trainer/own_values.h"
#include "engine/trainer/run_texts.h"
#include "parsers/model_text.h"

namespace trireme {
namespace {

// No 16-bit gradient of a loss multiplied by this is finite; as the oracle of the traces does it (tests/compat).
constexpr double kOverflowFactor = 1e38;

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
  std::erase_if(ranks, [&](const CompiledProgram& program) {
    const Topology::Coordinate at = topology.CoordinateOf(program.rank);
    return at.dp_rank > 0 || at.tp_rank > 0;
  });
  const std::vector<std::string> units = UnitsNotRunOnce(plan, kind, ranks);
  TRIREME_CHECK(units.empty(), units.front());
}

}  // namespace

Trainer::Trainer(const TrainerSetup& setup, RankWorld world)
    : setup_(setup),
      world_(std::move(world)),
      memory_watch_(world_, setup.memory_limits),
      memory_(std::make_shared<RankMemory>(world_.device,
                                           RankMemoryOptions{setup.memory_limits.device_bytes, setup.page_lock})),
      watch_(setup.config, /*speaks=*/world_.rank == 0, [this](double loss_scale) {
        first_bad_value_ =
            FirstBadValue(*executor_, plan_, world_, setup_.modules, pending_.front().inputs, loss_scale);
        return first_bad_value_;
      }) {
  PlanInputs inputs;
  inputs.world_size = world_.world_size;
  inputs.sequence_length = setup_.sequence_length;
  inputs.decay_all = setup_.decay_all;
  inputs.fp64 = setup_.config.fp64;
  inputs.recompute = setup_.recompute;
  inputs.hidden_dropout = setup_.hidden_dropout;
  DescribeOwnModules(setup_.modules, setup_.sequence_length, setup_.model);
  inputs.own_units = OwnUnitSpecs(setup_.modules, setup_.model, setup_.decay_all);
  if (setup_.config.trireme.fill) {
    setup_.config = FillLayout(setup_.config, setup_.model, inputs, memory_watch_.ToFill(), world_);
  }
  plan_ = MakePlan(setup_.config, setup_.model, inputs);
  CompiledProgram train = CompileFor(plan_, ProgramKind::kTrain, world_.rank),
                  eval = CompileFor(plan_, ProgramKind::kEval, world_.rank);
  RequireSound(plan_, ProgramKind::kTrain, world_.rank, train);
  RequireSound(plan_, ProgramKind::kEval, world_.rank, eval);
  const VerifyReport mixed = VerifySequence(plan_, {&train, &eval, &eval, &train, &train});
  TRIREME_CHECK(mixed.ok(), mixed.problems.empty() ? "" : mixed.problems.front());
  AccountMemory(plan_);
  for (MemoryAccount& account : plan_.memory_of_pp_rank) {
    if (world_.shares_gpus) account.communicator = 0;  // through the host
  }
  cures_ = [this, inputs](const Plan& plan, const MemoryShortage& shortage) {
    return CuresFor({setup_.config, setup_.model, inputs}, plan, shortage, world_.ranks_per_node,
                    world_.device.is_cuda(), setup_.plan_command);
  };
  memory_watch_.RequireRoom(plan_, world_, cures_);
  if (setup_.deterministic) at::globalContext().setDeterministicAlgorithms(true, false);
  Guard([&] { Allocate(std::move(train), std::move(eval)); });
  BroadcastBuffers(setup_.modules, world_);
}

Trainer::~Trainer() = default;

void Trainer::Allocate(CompiledProgram train, CompiledProgram eval) {
  const ZeroConfig& zero = setup_.config.zero_optimization;
  const StateFiles files{{zero.offload_optimizer.nvme_path, zero.offload_optimizer.buffer_count, setup_.config.aio},
                         zero.offload_param.nvme_path};
  state_ = std::make_unique<RankState>(plan_, world_.rank, world_.device, RankState::Use::kTraining, files, memory_);
  kernels::InitStepState(state_->step_state(), InitialLossScale(setup_.config),
                         LossScalingOf(setup_.config).hysteresis);
  updater_ =
      std::make_unique<Updater>(setup_.config.optimizer, setup_.config.scheduler, setup_.train_iters, world_.device);
  updater_->InitialiseMoments(*state_);
  ExecutorParts parts;
  parts.plan = &plan_;
  parts.state = state_.get();
  parts.updater = updater_.get();
  groups_ = MakeGroups(world_, plan_);
  RequireAllParameters(*state_, world_);
  replicas_ = std::make_unique<ReplicaCheck>(*state_, world_);
  parts.world = groups_.world;
  parts.dp = groups_.dp;
  parts.tp = groups_.tp;
  parts.pp = groups_.pp;
  parts.tie = groups_.tie;
  parts.gradient_clipping = std::max(0.0, setup_.config.gradient_clipping);
  parts.loss_scaling = LossScalingOf(setup_.config);
  parts.holds_skips = setup_.config.trireme.find_bad_value;
  parts.dropout_seed = static_cast<uint64_t>(setup_.config.seed);
  parts.before_instruction = setup_.before_instruction;
  executor_ = std::make_unique<Executor>(parts, MakeUnits(plan_, setup_.modules, world_.device), std::move(train),
                                         std::move(eval));
}

StepInputs Trainer::InputsOf(StepBatch batch) const {
  const bool overflows = std::ranges::find(setup_.inject_overflow, steps_started_) != setup_.inject_overflow.end();
  StepInputs inputs;
  inputs.fill = std::move(batch.fill);
  inputs.step = steps_started_;
  inputs.loss_factor = overflows ? kOverflowFactor : 1;
  inputs.shapes = std::move(batch.shapes);
  inputs.rate_factor = batch.rate_factor;
  for (const InjectedStepValue& injected : setup_.inject_values) {
    if (injected.step == steps_started_ && injected.rank == world_.rank) inputs.injected.push_back(injected.value);
  }
  return inputs;
}

void Trainer::StartStep(TokenFill fill) {
  StartStep(StepBatch{.fill = std::move(fill), .num_samples = plan_.batch.train_batch_size});
}

void Trainer::StartStep(StepBatch batch) {
  BeforeStep();
  const int64_t num_samples = batch.num_samples;
  StepInputs inputs = InputsOf(std::move(batch));
  const int64_t run = Guard([&] { return executor_->Run(ProgramKind::kTrain, inputs); });
  pending_.push_back({run, std::move(inputs)});
  ++steps_started_;
  consumed_samples_ += num_samples;
}

StepResult Trainer::FinishStep() {
  TRIREME_CHECK(!pending_.empty(), "FinishStep without a started step");
  const StepResult result = Guard([&] { return executor_->Result(pending_.front().run); });
  ++steps_finished_;
  applied_steps_ = result.applied_steps;
  skipped_steps_ = result.skipped_steps;
  watch_.Check(steps_finished_ - 1, result);
  pending_.pop_front();
  if (result.held) Resume();
  return result;
}

void Trainer::BeforeStep() {
  const int64_t every = setup_.config.trireme.check_replicas_every;
  if (every > 0 && steps_started_ > 0 && steps_started_ % every == 0) CompareReplicas();
}

void Trainer::CompareReplicas() {
  if (setup_.config.trireme.check_replicas_every == 0 || !replicas_->any()) return;
  executor_->Drain();
  replicas_->Compare(steps_started_);
}

// The steps that were issued after a held one were void.
void Trainer::Resume() {
  executor_->Release();
  for (StartedStep& step : pending_) step.run = executor_->Run(ProgramKind::kTrain, step.inputs);
}

double Trainer::Forward(TokenFill fill, int64_t micro_batch) {
  if (micro_batch == 0) BeforeStep();
  pieces_.resize(static_cast<size_t>(micro_batch));
  pieces_.push_back(fill);
  return executor_->ForwardPiece(InputsOf({.fill = std::move(fill)}), micro_batch);
}

void Trainer::Backward(int64_t micro_batch) { executor_->BackwardPiece(micro_batch); }

void Trainer::Step() {
  const int64_t run = executor_->StepPiece();
  const auto fill = [pieces = std::exchange(pieces_, {})](int64_t micro_batch, const at::Tensor& tokens) {
    pieces.at(static_cast<size_t>(micro_batch))(micro_batch, tokens);
  };
  pending_.push_back({run, InputsOf({.fill = fill})});
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

StepBatch Trainer::BatchFrom(std::shared_ptr<const data::DynamicBatches> source, int64_t position) const {
  return StepBatchAt(plan_, setup_.config, state_->dp_rank(), std::move(source), position);
}

Evaluation Trainer::Evaluate(std::shared_ptr<const data::BatchSource> source, int64_t num_batches) {
  const int64_t samples = source->num_samples(), global = plan_.batch.train_batch_size;
  const int64_t all = (samples + global - 1) / global;
  const int64_t batches = num_batches > 0 ? std::min(num_batches, all) : all;
  const int64_t micro = plan_.batch.micro_batch_size, row = plan_.batch.sequence_length + 1,
                dp_rank = state_->dp_rank(), dp_size = plan_.topology.dp_size;
  return EvaluateSteps([=, b = int64_t{0}]() mutable -> std::optional<StepBatch> {
    if (b == batches) return std::nullopt;
    const int64_t begin = global * b++;
    return StepBatch{.fill = [=](int64_t micro_batch, const at::Tensor& out) {
      const int64_t first = data::FirstSample(begin, micro_batch, dp_rank, dp_size, micro);
      const int64_t count = std::clamp<int64_t>(samples - first, 0, micro);
      int32_t* ids = out.mutable_data_ptr<int32_t>();
      if (count > 0) source->Fill(first, count, {ids, static_cast<size_t>(count * row)});
      std::fill(ids + count * row, ids + micro * row, -1);  // past the end: no token, no loss
    }};
  });
}

Evaluation Trainer::Evaluate(std::shared_ptr<const data::DynamicBatches> source, int64_t num_batches) {
  int64_t position = 0, done = 0;
  return EvaluateSteps([&]() -> std::optional<StepBatch> {
    if (position == source->num_samples() || (num_batches > 0 && done == num_batches)) return std::nullopt;
    StepBatch batch = BatchFrom(source, position);
    position += batch.num_samples;
    ++done;
    return batch;
  });
}

Evaluation Trainer::EvaluateSteps(const std::function<std::optional<StepBatch>()>& next) {
  double loss_sum = 0, tokens = 0;
  const auto add = [&](int64_t run) {
    const StepResult result = executor_->Result(run);
    loss_sum += result.eval_loss_sum;
    tokens += result.eval_tokens;
  };
  int64_t before = -1;
  while (std::optional<StepBatch> batch = next()) {
    StepInputs inputs = InputsOf(std::move(*batch));
    inputs.loss_factor = 1;
    inputs.injected.clear();
    const int64_t run = Guard([&] { return executor_->Run(ProgramKind::kEval, std::move(inputs)); });
    if (before >= 0) add(before);
    before = run;
  }
  if (before >= 0) add(before);
  return {tokens > 0 ? loss_sum / tokens : 0, static_cast<int64_t>(tokens)};
}

// What these make on the default stream must be there before a lane's first instruction, which waits for nothing.
void Trainer::InitialiseWeights(uint64_t seed) {
  Guard([&] { state_->InitialiseWeights(seed); });
  TakeInitialValues(setup_.modules, *state_, world_);
  Synchronise(device());
}

void Trainer::LoadHuggingFace(const std::filesystem::path& folder) {
  RefuseOwnModules(plan_.model, "reading a Hugging Face folder", folder.string());
  const std::unique_ptr<checkpoint::CheckpointReader> reader = checkpoint::OpenHuggingFace(folder, plan_.model);
  for (const std::string& warning : reader->info().warnings) log::Warn("{}", warning);
  Guard([&] { LoadInitialWeights(*state_, *reader); });
  GatherWeights(*state_, *groups_.dp);
  Synchronise(device());
}

void Trainer::SaveHuggingFace(const std::filesystem::path& folder, std::optional<DType> dtype,
                              std::vector<checkpoint::Companion> companions) {
  RefuseOwnModules(plan_.model, "writing a Hugging Face folder", folder.string());
  TRIREME_CHECK(pending_.empty(), "a step is unfinished");
  executor_->Drain();
  ExportRequest request{folder, dtype.value_or(plan_.dtypes.compute), std::move(companions)};
  request.scratch = executor_->arena();
  Guard([&] { ExportHuggingFace(*state_, world_, *groups_.dp, request); });
}

std::optional<ScalerCounters> Trainer::ScalerOf(const double* step_state) const {
  if (!LossScalingOf(setup_.config).dynamic) return std::nullopt;
  return ScalerCounters{.growth_tracker = step_state[kGrowthTracker], .hysteresis = step_state[kHysteresis]};
}

// A dynamic scale goes on where it was; any other comes from the config of this run.
void Trainer::RestoreScaler(const RunCounters& counters, double* step_state) {
  if (!counters.scaler || !LossScalingOf(setup_.config).dynamic) return;
  step_state[kLossScale] = counters.loss_scale;
  step_state[kGrowthTracker] = counters.scaler->growth_tracker;
  step_state[kHysteresis] = counters.scaler->hysteresis;
  watch_.set_loss_scale(counters.loss_scale);
}

std::string Trainer::Save(const std::filesystem::path& root, const std::optional<data::DataPosition>& position) {
  TRIREME_CHECK(pending_.empty(), "a step is unfinished");
  executor_->Drain();
  CompareReplicas();
  const at::Tensor scalars = state_->step_state().cpu();
  const double* s = scalars.const_data_ptr<double>();
  SaveRequest request;
  request.root = root;
  request.tag = "global_step" + std::to_string(steps_finished_);
  request.step = steps_finished_;
  request.model_config = ModelToJson(plan_.model, plan_.dtypes.compute);
  request.optimizer = OptimizerToJson(setup_.config.optimizer);
  request.trainer_state = CountersToJson({.steps = steps_finished_,
                                          .applied_steps = static_cast<int64_t>(s[kAppliedSteps]),
                                          .skipped_steps = static_cast<int64_t>(s[kSkippedSteps]),
                                          .consumed_samples = consumed_samples_,
                                          .loss_scale = s[kLossScale],
                                          .scaler = ScalerOf(s)});
  if (position) {
    data::DataPosition now = *position;
    now.consumed_samples = consumed_samples_;
    request.data_position = data::PositionToJson(now);
  }
  Guard([&] { SaveCheckpoint(*state_, setup_.config.optimizer, world_, request); });
  return request.tag;
}

// Whatever went before, a step that ended in an error too: the run goes on from the checkpoint.
std::optional<data::DataPosition> Trainer::Load(const std::filesystem::path& root) {
  executor_->Drain();  // a step's result comes before its last updates
  pending_.clear();
  pieces_.clear();
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
  Guard([&] { LoadTensors(*state_, setup_.config.optimizer, *reader, /*with_moments=*/true); });
  GatherWeights(*state_, *groups_.dp);
  at::Tensor scalars = state_->step_state().cpu();
  double* s = scalars.mutable_data_ptr<double>();
  s[kAppliedSteps] = static_cast<double>(counters.applied_steps);
  s[kSkippedSteps] = static_cast<double>(counters.skipped_steps);
  RestoreScaler(counters, s);
  for (const StepStateSlot slot : {kHeld, kScaleExhausted, kLossSum, kTokens, kSumOfSquares, kNonFinite}) s[slot] = 0;
  watch_.Restart();
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
