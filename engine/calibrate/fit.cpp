#include "engine/calibrate/fit.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "engine/comm/backends.h"
#include "engine/schedule/predict.h"
#include "engine/trainer/trainer.h"
#include "parsers/config.h"
#include "parsers/model_spec.h"

namespace trireme::calibrate {
namespace {

constexpr double kLeastFactor = 0.5, kMostFactor = 20;
constexpr int64_t kWarmSteps = 3;

TrainerSetup SetupOf(const Sizes& sizes, bool bf16) {
  TrainerSetup setup;
  ModelSpec& model = setup.model;
  model.name = "a small GPT";
  model.num_layers = sizes.fit_layers;
  model.hidden_size = sizes.fit_hidden;
  model.num_attention_heads = model.num_key_value_heads = sizes.fit_heads;
  model.intermediate_size = 4 * sizes.fit_hidden;
  model.vocab_size = sizes.fit_vocabulary;
  model.max_position_embeddings = sizes.fit_sequence;
  PadVocabulary(model, 1);
  Config& config = setup.config;
  config.optimizer.type = OptimizerType::kAdamW;
  config.optimizer.lr = 1e-4;
  config.gradient_clipping = 1;
  config.bf16.enabled = bf16;
  config.data_types.grad_accum_dtype = DType::kFloat32;
  config.batch = {sizes.fit_micro_batch * sizes.fit_accumulation, sizes.fit_micro_batch, sizes.fit_accumulation};
  config.world_size = config.dp_size = 1;
  setup.sequence_length = sizes.fit_sequence;
  setup.train_iters = sizes.fit_steps + kWarmSteps;
  return setup;
}

// Seconds of each step after the warm-up.
std::vector<double> Train(Trainer& trainer, const Sizes& sizes) {
  const auto fill = [&](int64_t micro_batch, const at::Tensor& tokens) {
    int32_t* out = tokens.mutable_data_ptr<int32_t>();
    uint64_t x = static_cast<uint64_t>(micro_batch) * 2654435761U + 12345;
    for (int64_t i = 0; i < tokens.numel(); ++i) {
      x = x * 6364136223846793005U + 1442695040888963407U;
      out[i] = static_cast<int32_t>((x >> 33) % static_cast<uint64_t>(sizes.fit_vocabulary));
    }
  };
  std::vector<double> seconds;
  auto last = std::chrono::steady_clock::now();
  const int64_t steps = sizes.fit_steps + kWarmSteps;
  trainer.StartStep(fill);
  for (int64_t step = 0; step < steps; ++step) {
    if (step + 1 < steps) trainer.StartStep(fill);
    const auto now = trainer.FinishStep().completed;
    if (step >= kWarmSteps) seconds.push_back(std::chrono::duration<double>(now - last).count());
    last = now;
  }
  trainer.executor().Drain();
  return seconds;
}

}  // namespace

void FitEngineFactor(const Stopwatch& watch, const Sizes& sizes, int64_t sharing, Cluster& cluster, Figures& figures) {
  RankWorld& world = watch.world();
  Trainer trainer(SetupOf(sizes, world.device.is_cuda()), Alone(world));
  trainer.InitialiseWeights(1);
  world.world->Barrier();
  std::vector<double> seconds = Train(trainer, sizes);
  const Timing step = watch.Summary(std::move(seconds));
  const double measured = step.seconds / static_cast<double>(sharing);
  // A step is linear in the factor.
  const auto predicted = [&](double factor) {
    cluster.device.engine_factor = factor;
    return Predict(trainer.plan(), cluster).step_seconds;
  };
  const double at_1 = predicted(1), slope = predicted(2) - at_1;
  cluster.device.engine_factor = std::clamp(1 + (measured - at_1) / slope, kLeastFactor, kMostFactor);
  figures.push_back({"a step of a small GPT", step.seconds, "s", step.spread});
  figures.push_back({"engine factor", cluster.device.engine_factor, "", step.spread});
}

}  // namespace trireme::calibrate
