#include "engine/trainer/initialize.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "parsers/cli.h"

namespace trireme {
namespace {

[[noreturn]] void WrongOrder(const char* called, const char* expected) {
  throw Error(ErrorCode::kUsage, "TRN020", std::string(called) + "() was called where " + expected + "() must follow",
              "engine", "call forward, backward, step for each micro-batch, in this order");
}

}  // namespace

void DataLoader::Open(int64_t first_sample, int64_t steps, int64_t saved_num_samples) {
  request_.train_samples = first_sample + steps * trainer_->plan().batch.train_batch_size;
  request_.saved_num_samples = saved_num_samples;
  data::TrainingData data = data::OpenTrainingData(request_);
  samples_ = std::move(data.train);
  position_ = data.position;
  first_sample_ = first_sample;
  micro_batch_ = 0;
}

at::Tensor DataLoader::next() {
  const BatchPlan& batch = trainer_->plan().batch;
  at::Tensor tokens = at::empty({batch.micro_batch_size, batch.sequence_length + 1}, at::kInt);
  trainer_->FillFrom(samples_, first_sample_)(micro_batch_, tokens);
  if (++micro_batch_ == batch.num_micro_batches) {
    micro_batch_ = 0;
    first_sample_ += batch.train_batch_size;
  }
  return tokens;
}

std::vector<double> LrScheduler::get_last_lr() const { return {trainer_->RatesOf(applied_).lr}; }

double Engine::train_batch(DataLoader& loader) {
  if (expect_ != Expect::kForward || micro_batch_ != 0) {
    WrongOrder("train_batch", expect_ == Expect::kBackward ? "backward" : "step");
  }
  if (loader.micro_batch_ != 0) WrongOrder("train_batch", "next");
  trainer_->StartStep(trainer_->FillFrom(loader.samples_, loader.first_sample_));
  loader.first_sample_ += train_batch_size();
  const StepResult result = trainer_->FinishStep();
  Note(result);
  return result.loss;
}

double Engine::forward(const at::Tensor& tokens) {
  if (expect_ != Expect::kForward) WrongOrder("forward", expect_ == Expect::kBackward ? "backward" : "step");
  const BatchPlan& batch = trainer_->plan().batch;
  if (tokens.scalar_type() != at::kInt || tokens.dim() != 2 || tokens.size(0) != batch.micro_batch_size ||
      tokens.size(1) != batch.sequence_length + 1) {
    throw Error(ErrorCode::kUsage, "TRN021",
                "the micro-batch must be int32 [" + std::to_string(batch.micro_batch_size) + ", " +
                    std::to_string(batch.sequence_length + 1) + "] (sequences, seq_length + 1)",
                "engine.forward", "take it from the data loader, or shape it so");
  }
  const at::Tensor held = tokens.contiguous();
  expect_ = Expect::kBackward;
  return trainer_->Forward([held](int64_t, const at::Tensor& out) { out.copy_(held); }, micro_batch_);
}

void Engine::backward(double) {
  if (expect_ != Expect::kBackward) WrongOrder("backward", expect_ == Expect::kForward ? "forward" : "step");
  trainer_->Backward(micro_batch_);
  expect_ = Expect::kStep;
}

bool Engine::is_gradient_accumulation_boundary() const {
  return micro_batch_ + 1 == trainer_->plan().batch.num_micro_batches;
}

void Engine::step() {
  if (expect_ != Expect::kStep) WrongOrder("step", expect_ == Expect::kForward ? "forward" : "backward");
  expect_ = Expect::kForward;
  if (!is_gradient_accumulation_boundary()) {
    ++micro_batch_;
    return;
  }
  micro_batch_ = 0;
  trainer_->Step();
  Note(trainer_->FinishStep());
}

void Engine::Note(const StepResult& result) {
  optimizer_->grad_norm_ = result.grad_norm;
  optimizer_->loss_scale_ = result.loss_scale;
  scheduler_->applied_ = result.applied_steps - (result.skipped ? 0 : 1);
}

std::string Engine::save_checkpoint(const std::string& save_dir) {
  return trainer_->Save(save_dir, loader_ ? std::optional(loader_->position_) : std::nullopt);
}

void Engine::load_checkpoint(const std::string& load_dir) {
  const std::optional<data::DataPosition> saved = trainer_->Load(load_dir);
  micro_batch_ = 0;
  expect_ = Expect::kForward;
  scheduler_->applied_ = trainer_->applied_steps();
  if (!loader_) return;
  const int64_t steps_left = std::max<int64_t>(0, train_iters_ - trainer_->steps_finished());
  loader_->Open(trainer_->consumed_samples(), steps_left, saved ? saved->num_samples : 0);
  if (!saved) return;
  for (const std::string& difference : data::OrderDifferences(*saved, loader_->position_)) {
    log::Warn("resumed data order: {}", difference);
  }
}

EngineParts initialize(const InitializeOptions& options) {
  RankWorld world = options.world != nullptr ? std::move(*options.world) : RankWorld::FromEnvironment(options.device);
  TrainerSetup setup;
  TrainFlags flags;
  flags.train_iters = options.train_iters;
  ParseResult parsed = ParseConfigFile(options.config, flags, world.world_size, options.model.hidden_size);
  parsed.diagnostics.ThrowIfErrors();
  setup.config = parsed.config;
  if (setup.config.data_efficiency.dynamic_batching.enabled) {
    throw Error(ErrorCode::kUsage, "TRN022", "dynamic batching, and the data loader gives batches of one shape",
                "initialize", "switch it off, or use `trireme train`");
  }
  setup.model = options.model;
  if (setup.model.padded_vocab_size == 0) PadVocabulary(setup.model, setup.config.tensor_parallel.tp_size);
  setup.sequence_length = options.seq_length;
  setup.train_iters = options.train_iters;
  setup.recompute = options.recompute;
  setup.modules = options.modules;

  EngineParts parts;
  parts.engine = std::make_shared<Engine>();
  Engine& engine = *parts.engine;
  engine.trainer_ = std::make_unique<Trainer>(setup, std::move(world));
  engine.trainer_->InitialiseWeights(static_cast<uint64_t>(setup.config.seed));
  engine.optimizer_ = parts.optimizer = std::make_shared<Optimizer>();
  engine.scheduler_ = parts.lr_scheduler = std::make_shared<LrScheduler>();
  parts.lr_scheduler->trainer_ = engine.trainer_.get();
  engine.train_iters_ = options.train_iters;
  if (!options.training_data.empty()) {
    engine.loader_ = parts.data_loader = std::make_shared<DataLoader>();
    parts.data_loader->trainer_ = engine.trainer_.get();
    parts.data_loader->request_ = {.data_path = options.training_data,
                                   .split = options.split,
                                   .seq_length = options.seq_length,
                                   .vocab_size = setup.model.vocab_size,
                                   .seed = setup.config.seed};
    parts.data_loader->Open(0, options.train_iters, 0);
  }
  return parts;
}

}  // namespace trireme
