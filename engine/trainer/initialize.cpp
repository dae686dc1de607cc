#include "engine/trainer/initialize.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/data/sampler.h"
#include "parsers/cli.h"

namespace trireme {
namespace {

[[noreturn]] void WrongOrder(const char* called, const char* expected) {
  throw Error(ErrorCode::kUsage, "TRN020", std::string(called) + "() was called where " + expected + "() must follow",
              "engine", "call forward, backward, step for each micro-batch, in this order");
}

}  // namespace

at::Tensor DataLoader::next() {
  const BatchPlan& batch = trainer_->plan().batch;
  at::Tensor tokens = at::empty({batch.micro_batch_size, batch.sequence_length + 1}, at::kInt);
  trainer_->NextFill (*data_.train)(micro_batch_, tokens);
  micro_batch_ = (micro_batch_ + 1) % batch.num_micro_batches;
  return tokens;
}

std::vector<double> LrScheduler::get_last_lr() const { return {trainer_->RatesOf(applied_).lr}; }

double Engine::train_batch(DataLoader& loader) {
  if (expect_ != Expect::kForward || micro_batch_ != 0)
    WrongOrder("train_batch", expect_ == Expect::kBackward ? "backward" : "step");
  trainer_->StartStep(trainer_->NextFill(*loader.data_.train));
  Note(trainer_->FinishStep());
  return last_.loss;
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
  last_ = result;
  optimizer_->grad_norm_ = result.grad_norm;
  optimizer_->loss_scale_ = result.loss_scale;
  scheduler_->applied_ = result.applied_steps - (result.skipped ? 0 : 1);
}

std::string Engine::save_checkpoint(const std::string& save_dir) {
  return trainer_->Save(save_dir, loader_ ? std::optional(loader_->data_.position) : std::nullopt);
}

void Engine::load_checkpoint(const std::string& load_dir) { trainer_->Load(load_dir); }

EngineParts initialize(const InitializeOptions& options) {
  RankWorld world = options.world != nullptr ? std::move(*options.world) : RankWorld::FromEnvironment(options.device);
  TrainerSetup setup;
  TrainFlags flags;
  flags.train_iters = options.train_iters;
  ParseResult parsed = ParseConfigFile(options.config, flags, world.world_size, options.model.hidden_size);
  parsed.diagnostics.ThrowIfErrors();
  setup.config = parsed.config;
  setup.model = options.model;
  if (setup.model.padded_vocab_size == 0) PadVocabulary(setup.model, setup.config.tensor_parallel.tp_size);
  setup.sequence_length = options.seq_length;
  setup.train_iters = options.train_iters;

  EngineParts parts;
  parts.engine = std::make_shared<Engine>();
  Engine& engine = *parts.engine;
  engine.trainer_ = std::make_unique<Trainer>(setup, std::move(world));
  engine.trainer_->InitialiseWeights(static_cast<uint64_t>(setup.config.seed));
  engine.optimizer_ = parts.optimizer = std::make_shared<Optimizer>();
  engine.scheduler_ = parts.lr_scheduler = std::make_shared<LrScheduler>();
  parts.lr_scheduler->trainer_ = engine.trainer_.get();
  if (!options.training_data.empty()) {
    engine.loader_ = parts.data_loader = std::make_shared<DataLoader>();
    parts.data_loader->trainer_ = engine.trainer_.get();
    parts.data_loader->data_ =
        data::OpenTrainingData({.data_path = options.training_data,
                                .split = options.split,
                                .seq_length = options.seq_length,
                                .vocab_size = setup.model.vocab_size,
                                .train_samples = options.train_iters * setup.config.batch.train_batch_size,
                                .seed = setup.config.seed});
  }
  return parts;
}

}  // namespace trireme
