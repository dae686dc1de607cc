// The library as DeepSpeed users know it, under the names they know: initialize -> engine, optimizer, data loader,
// scheduler.
//   auto [engine, optimizer, loader, scheduler] = trireme::initialize({.config = "ds_config.json", .model = model,
//   ...}); for (int step = 0; step < 100; ++step) double loss = engine->train_batch(*loader);
// or, a micro-batch at a time:
//   double loss = engine->forward(loader->next());  engine->backward(loss);  engine->step();
// One process is one rank: RANK, WORLD_SIZE and so on come from the launcher, or from the caller
// (InitializeOptions::world).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/trainer/trainer.h"

namespace trireme {

struct InitializeOptions {
  std::string config;  // path of ds_config.json
  // NamedModel("gpt-125m"), or filled by hand. With own modules only the sizes that the family's units left need, and
  // hidden_size and vocab_size.
  ModelSpec model;
  OwnModules modules = {};  // own_modules.h; this rank's alone
  int64_t seq_length = 1024;
  std::string training_data = "";  // prefix of .bin/.idx; "": no loader
  int64_t train_iters = 1000;      // optimizer steps of the whole run
  std::string split = "969,30,1";
  Recompute recompute = Recompute::kNone;  // kFull: a unit's forward is made once more before its backward
  std::string device = "";                 // "cpu", "cuda"; "": a GPU where there is one
  RankWorld* world = nullptr;              // moved from; null: from the environment
};

struct EngineParts;

// This rank's micro-batches in the order of the run. It has a position of its own: what was taken from it is not taken
// again, and loading a checkpoint sets it to the first sample that the saved run had not consumed.
class DataLoader {
 public:
  // The next micro-batch: int32 [micro, seq_length + 1] on the host, inputs first, labels shifted by one.
  at::Tensor next();
  int64_t next_sample() const { return first_sample_; }  // of the global batch that next() is in

 private:
  friend class Engine;
  friend EngineParts initialize(const InitializeOptions& options);
  void Open(int64_t first_sample, int64_t steps, int64_t saved_num_samples);

  const Trainer* trainer_ = nullptr;
  data::DataRequest request_;
  std::shared_ptr<const data::BatchSource> samples_;
  data::DataPosition position_;
  int64_t first_sample_ = 0;  // of the current global batch
  int64_t micro_batch_ = 0;   // next one in it
};

class LrScheduler {
 public:
  std::vector<double> get_last_lr() const;  // of the last finished step; the first step's before it

 private:
  friend class Engine;
  friend EngineParts initialize(const InitializeOptions& options);
  const Trainer* trainer_ = nullptr;
  int64_t applied_ = 0;  // updates before the one whose rate is shown
};

// What DeepSpeed's optimizer shows to users; the engine steps it.
class Optimizer {
 public:
  double loss_scale() const { return loss_scale_; }
  std::optional<double> global_grad_norm() const { return grad_norm_; }

 private:
  friend class Engine;
  double loss_scale_ = 1;
  std::optional<double> grad_norm_;
};

class Engine {
 public:
  // One optimizer step: gradient_accumulation_steps micro-batches of the loader. Returns the mean loss over all tokens
  // of the step.
  double train_batch(DataLoader& loader);

  // A micro-batch by hand: forward returns the mean loss on this rank, backward makes its gradients (`loss` is what
  // forward returned), step acts at the accumulation boundary and only counts before it.
  double forward(const at::Tensor& tokens);
  void backward(double loss);
  void step();
  bool is_gradient_accumulation_boundary() const;

  std::string save_checkpoint(const std::string& save_dir);  // returns the tag
  // Any saved layout. Counters, rates and the loader go on where the saved run stood.
  void load_checkpoint(const std::string& load_dir);

  int64_t global_steps() const { return trainer_->steps_finished(); }
  int64_t skipped_steps() const { return trainer_->skipped_steps(); }
  int64_t global_samples() const { return trainer_->consumed_samples(); }
  std::vector<double> get_lr() const { return scheduler_->get_last_lr(); }
  std::optional<double> get_global_grad_norm() const { return optimizer_->global_grad_norm(); }
  int64_t train_micro_batch_size_per_gpu() const { return trainer_->plan().batch.micro_batch_size; }
  int64_t gradient_accumulation_steps() const { return trainer_->plan().batch.num_micro_batches; }
  int64_t train_batch_size() const { return trainer_->plan().batch.train_batch_size; }
  Trainer& trainer() { return *trainer_; }

 private:
  friend EngineParts initialize(const InitializeOptions& options);
  void Note(const StepResult& result);

  std::unique_ptr<Trainer> trainer_;
  std::shared_ptr<Optimizer> optimizer_;
  std::shared_ptr<DataLoader> loader_;
  std::shared_ptr<LrScheduler> scheduler_;
  int64_t micro_batch_ = 0;  // of the current step, in forward / backward / step
  enum class Expect { kForward, kBackward, kStep } expect_ = Expect::kForward;
  int64_t train_iters_ = 0;
};

struct EngineParts {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Optimizer> optimizer;
  std::shared_ptr<DataLoader> data_loader;  // null without training_data
  std::shared_ptr<LrScheduler> lr_scheduler;
};

// Throws Error{kConfig} with all problems of the config at once.
EngineParts initialize(const InitializeOptions& options);

}  // namespace trireme
