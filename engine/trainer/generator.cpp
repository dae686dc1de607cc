#include "engine/trainer/generator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/error.h"
#include "engine/schedule/buffers.h"
#include "engine/trainer/checkpointing.h"
#include "engine/trainer/run_texts.h"

namespace trireme {
namespace {

Plan PlanFor(const checkpoint::CheckpointReader& reader, int64_t context) {
  const checkpoint::CheckpointInfo& info = reader.info();
  RequireRunState(info.format, info.directory.string());
  const ModelSpec model = ModelFromJson(info.model_config, info.directory.string() + ": model description");
  Config config;  // one rank, fp32, one sequence
  config.batch = {1, 1, 1};
  PlanInputs inputs;
  inputs.sequence_length =
      context > 0 ? std::min(context, model.max_position_embeddings) : model.max_position_embeddings;
  return MakePlan(config, model, inputs);
}

}  // namespace

Generator::Generator(const checkpoint::CheckpointReader& reader, at::Device device, int64_t wanted)
    : plan_(PlanFor(reader, wanted)) {
  const at::NoGradGuard no_grad;
  state_ = std::make_unique<RankState>(plan_, 0, device, RankState::Use::kWeightsOnly);
  LoadTensors(*state_, {}, reader, /*with_moments=*/false);
  units_ = MakeUnits(plan_);
  const auto of = [&](DType dtype) { return at::TensorOptions().dtype(ScalarTypeOf(dtype)).device(device); };
  tokens_ = at::zeros({1, context() + 1}, of(DType::kInt32));
  boundary_ = at::zeros({context(), plan_.model.hidden_size}, of(plan_.dtypes.compute));
  next_boundary_ = at::zeros_like(boundary_);
  logits_ = at::zeros({1, plan_.model.padded_vocab_size}, of(plan_.dtypes.compute));
  int64_t workspace = 1, saved = 1;
  for (int u = 0; u < plan_.num_units(); ++u) {
    const UnitSpec& spec = plan_.units[static_cast<size_t>(u)].spec;
    workspace =
        std::max(workspace, spec.forward_workspace.bytes_per_token * context() + spec.forward_workspace.fixed_bytes);
    saved = std::max(saved, BufferBytes(plan_, {BufferKind::kSaved, static_cast<int16_t>(u), 0, 0, 0}));
  }
  workspace_ = at::zeros({workspace}, of(DType::kUInt8));
  saved_.arena = at::zeros({saved}, of(DType::kUInt8));
}

Generator::~Generator() = default;

std::vector<float> Generator::Logits(std::span<const int32_t> ids) {
  const at::NoGradGuard no_grad;
  TRIREME_CHECK(!ids.empty(), "nothing to continue");
  const int64_t count = std::min<int64_t>(static_cast<int64_t>(ids.size()), context());
  at::Tensor host = at::zeros({1, context() + 1}, at::kInt);  // what follows the last token is never looked at
  std::copy_n(ids.end() - count, count, host.mutable_data_ptr<int32_t>());
  tokens_.copy_(host);
  UnitArgs args;
  args.micro_batch_size = 1;
  args.sequence_length = context();
  args.tokens = tokens_;
  args.workspace = workspace_;
  args.saved = &saved_;
  args.tied_weights = state_->weights(0);
  args.step_state = state_->step_state();
  for (int u = 0; u + 1 < plan_.num_units(); ++u) {
    args.weights = state_->weights(u);
    args.input = boundary_;
    args.output = next_boundary_;
    units_[static_cast<size_t>(u)]->Forward(args);
    std::swap(boundary_, next_boundary_);
    saved_.pool.clear();
  }
  args.weights = state_->weights(plan_.num_units() - 1);
  args.input = boundary_;
  units_.back()->Logits(args, count - 1, logits_);
  const at::Tensor row = logits_.to(at::kFloat).cpu();
  const float* values = row.const_data_ptr<float>();
  return {values, values + plan_.model.vocab_size};
}

int32_t Sample(std::span<const float> logits, const Sampling& sampling, std::mt19937_64& random) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (sampling.temperature <= 0) return static_cast<int32_t>(best - logits.begin());
  float lowest = -INFINITY;
  if (sampling.top_k > 0 && sampling.top_k < static_cast<int64_t>(logits.size())) {
    std::vector<float> sorted(logits.begin(), logits.end());
    std::nth_element(sorted.begin(), sorted.begin() + (sampling.top_k - 1), sorted.end(), std::greater<>());
    lowest = sorted[static_cast<size_t>(sampling.top_k - 1)];
  }
  std::vector<double> weights(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    weights[i] = logits[i] < lowest ? 0 : std::exp((logits[i] - *best) / sampling.temperature);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double left = total * static_cast<double>(random() >> 11) * 0x1.0p-53;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<int32_t>(i);
  }
  return static_cast<int32_t>(best - logits.begin());
}

}  // namespace trireme
