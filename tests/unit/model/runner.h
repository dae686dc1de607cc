// Buffers of one rank, as the executor holds them, and one micro-batch over them.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "engine/kernels/kernels.h"
#include "engine/kernels/scalar_type.h"
#include "engine/model/unit.h"
#include "engine/plan/plan.h"

namespace trireme {
inline void PrintTo(const ModelSpec& model, std::ostream* out) { *out << model.name; }  // names the case of a test
}  // namespace trireme

namespace trireme::testing {

constexpr int64_t kMicro = 3, kSequence = 7, kTokenCount = kMicro * kSequence;

inline Plan PlanOf(const ModelSpec& model, DType compute, double dropout = 0, Recompute recompute = Recompute::kNone) {
  Config config;
  config.batch = {kMicro, kMicro, 1};
  config.bf16.enabled = compute == DType::kBFloat16;
  config.world_size = config.dp_size = 1;
  PlanInputs inputs;
  inputs.sequence_length = kSequence;
  inputs.fp64 = compute == DType::kFloat64;
  inputs.hidden_dropout = dropout;
  inputs.recompute = recompute;
  return MakePlan(config, model, inputs);
}

using Tensors = std::map<std::string, at::Tensor>;

class Runner {
 public:
  enum class Way { kWhole, kRecomputed, kSplit };  // Backward; after a second Forward without output; its two parts

  explicit Runner(const Plan& plan, at::Device device = at::kCPU)
      : plan_(plan), device_(device), units_(MakeUnits(plan_)) {
    at::manual_seed(3);
    for (const UnitLayout& layout : plan_.units) {
      at::Tensor flat = at::zeros({layout.padded_elements}, at::kDouble);
      for (const Segment& segment : layout.segments) {
        flat.narrow(0, segment.begin, segment.count).copy_(at::randn({segment.count}, at::kDouble) * 0.3);
      }
      weights_.push_back(flat.to(Compute()).to(device_));
      gradients_.push_back(Filled({layout.padded_elements}, std::nan(""), ScalarTypeOf(plan.dtypes.accumulate)));
    }
    workspace_ = Filled({WorkspaceBytes(plan_)}, 0xff, at::kByte);
    tokens_ = at::randint(plan.model.vocab_size, {kMicro, kSequence + 1}, at::kInt).to(device_);
    state_ = Filled({kStepStateSize}, 0, at::kDouble);
    kernels::InitStepState(state_, 1);
    dropout_ = {.probability = plan.hidden_dropout, .seed = 99, .step = 5, .first_sample = 12};
  }

  at::Tensor Filled(at::IntArrayRef shape, double value, at::ScalarType type) const {
    return at::full(shape, value, at::TensorOptions().dtype(type).device(device_));
  }
  at::Tensor Activations(int64_t tokens = kTokenCount) const {
    return Filled({tokens, plan_.model.hidden_size}, std::nan(""), Compute());
  }
  at::ScalarType Compute() const { return ScalarTypeOf(plan_.dtypes.compute); }

  UnitArgs Args(size_t unit) {
    UnitArgs args;
    args.micro_batch_size = kMicro;
    args.sequence_length = kSequence;
    args.weights = weights_[unit];
    args.workspace = workspace_;
    args.gradients = gradients_[unit];
    args.tied_weights = weights_[0];
    args.tied_gradients = gradients_[0];
    args.step_state = state_;
    args.tokens = tokens_;
    args.gradient_scale = 1.0 / kTokenCount;
    args.dropout = dropout_;
    return args;
  }

  void Run(bool add, Way way = Way::kWhole) {
    const size_t head = units_.size() - 1;
    saved_.assign(units_.size(), {});
    std::vector<at::Tensor> boundary(units_.size()), gradient(units_.size());
    for (size_t u = 0; u < head; ++u) {
      UnitArgs args = Args(u);
      boundary[u] = Activations();
      if (u > 0) args.input = boundary[u - 1];
      args.output = boundary[u];
      args.saved = NewSaved(u);
      units_[u]->Forward(args);
      if (way != Way::kRecomputed || u == 0) continue;
      const Saved first = saved_[u];
      args.output = at::Tensor();
      args.saved = NewSaved(u);
      units_[u]->Forward(args);
      EXPECT_TRUE(SameSaved(u, first, saved_[u]));
    }
    UnitArgs args = Args(head);
    args.add_gradients = args.add_tied_gradients = add;
    args.input = boundary[head - 1];
    args.input_gradient = gradient[head - 1] = Activations();
    units_[head]->Forward(args);
    for (size_t u = head; u-- > 0;) {
      UnitArgs back = Args(u);
      if (u > 0) back.input = boundary[u - 1];
      back.saved = &saved_[u];
      back.output_gradient = gradient[u];
      if (u > 0) back.input_gradient = gradient[u - 1] = Activations();
      back.add_gradients = add || (u == 0 && plan_.model.tie_word_embeddings);
      Backward(u, back, way == Way::kSplit && u > 0);
    }
  }

  double EvaluationLoss() {
    at::Tensor x;
    for (size_t u = 0; u < units_.size(); ++u) {
      UnitArgs args = Args(u);
      args.input = x;
      args.dropout.probability = 0;
      if (u + 1 < units_.size()) args.output = x = Activations();
      args.workspace = Filled({UnsavedWorkspaceBytes(plan_, kTokenCount)}, 0xff, at::kByte);
      units_[u]->Forward(args);
    }
    return state_[kEvalLossSum].item<double>();
  }

  bool SameSaved(size_t unit, const Saved& a, const Saved& b) const {
    const SavedLayout layout = LayOutSaved(plan_.units[unit].spec, plan_.dtypes, kTokenCount);
    for (size_t i = 0; i < layout.offsets.size(); ++i) {
      if (layout.offsets[i] < 0) continue;
      auto part = [&](const at::Tensor& arena) { return arena.narrow(0, layout.offsets[i], layout.bytes[i]); };
      if (!at::equal(part(a.arena), part(b.arena))) return false;
    }
    for (size_t i = 0; i < 2; ++i) {
      if (!at::equal(a.pool[i], b.pool[i])) return false;
    }
    return true;
  }

  // Logical tensors by name, from a flat buffer of every unit; padding included.
  Tensors Logical(const std::vector<at::Tensor>& flats) const {
    Tensors result;
    for (size_t u = 0; u < plan_.units.size(); ++u) {
      for (const Segment& segment : plan_.units[u].segments) {
        const at::Tensor held = flats[u].narrow(0, segment.begin, segment.count).view(segment.parameter.HeldShape());
        result[segment.parameter.name] =
            (segment.parameter.transposed ? held.t() : held).to(at::kCPU).to(at::kDouble).contiguous();
      }
    }
    return result;
  }

  const Plan plan_;
  const at::Device device_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<at::Tensor> weights_, gradients_;
  std::vector<Saved> saved_;
  at::Tensor workspace_, tokens_, state_;
  DropoutArgs dropout_;

 private:
  Saved* NewSaved(size_t unit) {
    const int64_t bytes = LayOutSaved(plan_.units[unit].spec, plan_.dtypes, kTokenCount).arena_bytes;
    saved_[unit] = {Filled({bytes}, 0xff, at::kByte), {}};
    return &saved_[unit];
  }

  // The parts share `saved`, `input` and `deferred` alone: whatever else there was is overwritten between them.
  void Backward(size_t unit, UnitArgs& args, bool split) {
    if (!split) return units_[unit]->Backward(args);
    const std::vector<SavedSpec>& deferred = plan_.units[unit].spec.deferred;
    args.deferred = Filled({LayOutSaved(deferred, plan_.dtypes, kTokenCount).arena_bytes}, 0xff, at::kByte);
    units_[unit]->BackwardInput(args);
    args.output_gradient.fill_(std::nan(""));
    args.workspace.fill_(0xff);
    UnitArgs later = Args(unit);
    later.saved = args.saved;
    later.input = args.input;
    later.deferred = args.deferred;
    later.add_gradients = args.add_gradients;
    units_[unit]->BackwardWeight(later);
  }
};

}  // namespace trireme::testing
