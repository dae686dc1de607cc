// The units against the same model written with autograd, in fp64 and fp32.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/model/flat_view.h"
#include "engine/model/unit.h"
#include "engine/plan/plan.h"

namespace trireme {
namespace {

using at::Tensor;
constexpr int64_t kMicro = 3, kSequence = 7, kTokenCount = kMicro * kSequence;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

Plan MakeTestPlan(bool tied, DType compute, DType accumulate) {
  Plan plan;
  plan.model = {.name = "test",
                .num_layers = 2,
                .hidden_size = 24,
                .num_attention_heads = 3,
                .num_key_value_heads = 3,
                .intermediate_size = 96,
                .vocab_size = 61,
                .padded_vocab_size = 64,
                .max_position_embeddings = 9,
                .tie_word_embeddings = tied};
  plan.dtypes = {.compute = compute, .master = accumulate, .accumulate = accumulate, .communicate = accumulate};
  for (const UnitSpec& spec :
       MakeUnitSpecs(plan.model, {.compute_dtype = compute, .sequence_length = kSequence, .tokens = kTokenCount})) {
    UnitLayout layout;
    layout.spec = spec;
    for (const ParameterSpec& parameter : spec.parameters) {
      layout.segments.push_back({parameter, layout.elements, parameter.HeldElements()});
      layout.elements = RoundUp(layout.elements + parameter.HeldElements(), kSegmentAlignment);
    }
    layout.padded_elements = layout.elements;
    plan.units.push_back(layout);
  }
  return plan;
}

// Buffers of one rank, as the executor holds them, and one step over them.
class Runner {
 public:
  explicit Runner(const Plan& plan, at::Device device = at::kCPU)
      : plan_(plan), device_(device), units_(MakeUnits(plan)) {
    at::manual_seed(3);
    int64_t workspace_bytes = 0;
    for (const UnitLayout& layout : plan.units) {
      Tensor flat = at::zeros({layout.padded_elements}, at::kDouble);
      for (const Segment& segment : layout.segments) {
        flat.narrow(0, segment.begin, segment.count).copy_(at::randn({segment.count}, at::kDouble) * 0.3);
      }
      weights_.push_back(flat.to(Compute()).to(device_));
      gradients_.push_back(Filled({layout.padded_elements}, std::nan(""), ScalarTypeOf(plan.dtypes.accumulate)));
      for (const WorkspaceSpec& spec : {layout.spec.forward_workspace, layout.spec.backward_workspace}) {
        workspace_bytes = std::max(workspace_bytes, spec.fixed_bytes + kTokenCount * spec.bytes_per_token);
      }
    }
    workspace_ = Filled({workspace_bytes}, 0xff, at::kByte);
    tokens_ = at::randint(plan.model.vocab_size, {kMicro, kSequence + 1}, at::kInt).to(device_);
    state_ = Filled({kStepStateSize}, 0, at::kDouble);
  }

  Tensor Filled(at::IntArrayRef shape, double value, at::ScalarType type) const {
    return at::full(shape, value, at::TensorOptions().dtype(type).device(device_));
  }

  at::ScalarType Compute() const { return ScalarTypeOf(plan_.dtypes.compute); }

  UnitArgs Args(size_t unit) {
    UnitArgs args;
    args.micro_batch_size = kMicro;
    args.sequence_length = kSequence;
    args.weights = weights_[unit];
    args.workspace = workspace_;
    args.gradients = gradients_[unit];
    args.step_state = state_;
    args.tokens = tokens_;
    args.gradient_scale = 1.0 / kTokenCount;
    return args;
  }

  Tensor Activations() { return Filled({kTokenCount, plan_.model.hidden_size}, std::nan(""), Compute()); }

  // One micro-batch. recompute: Backward reads what a second Forward without output saved.
  void Run(bool add, bool recompute = false) {
    const size_t head = units_.size() - 1;
    saved_.assign(units_.size(), {});
    std::vector<Tensor> boundary(units_.size()), gradient(units_.size());
    for (size_t u = 0; u < head; ++u) {
      UnitArgs args = Args(u);
      boundary[u] = Activations();
      if (u > 0) args.input = boundary[u - 1];
      args.output = boundary[u];
      args.saved = NewSaved(u);
      units_[u]->Forward(args);
      if (!recompute || u == 0) continue;
      const Saved first = saved_[u];
      args.output = Tensor();
      args.saved = NewSaved(u);
      units_[u]->Forward(args);
      EXPECT_TRUE(SameSaved(u, first, saved_[u]));
    }
    UnitArgs args = Args(head);
    args.tied_weights = weights_[0];
    args.tied_gradients = gradients_[0];
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
      units_[u]->Backward(back);
    }
  }

  double EvaluationLoss() {
    Tensor x;
    for (size_t u = 0; u < units_.size(); ++u) {
      UnitArgs args = Args(u);
      args.input = x;
      args.tied_weights = weights_[0];
      if (u + 1 < units_.size()) args.output = x = Activations();
      args.workspace = Filled({1 << 20}, 0, at::kByte);  // without `saved` a block keeps its activations here
      units_[u]->Forward(args);
    }
    return state_[kEvalLossSum].item<double>();
  }

  bool SameSaved(size_t unit, const Saved& a, const Saved& b) const {
    const SavedLayout layout = LayOutSaved(plan_.units[unit].spec, plan_.dtypes, kTokenCount);
    for (size_t i = 0; i < layout.offsets.size(); ++i) {
      if (layout.offsets[i] < 0) continue;
      auto part = [&](const Tensor& arena) { return arena.narrow(0, layout.offsets[i], layout.bytes[i]); };
      if (!at::equal(part(a.arena), part(b.arena))) return false;
    }
    for (size_t i = 0; i < 2; ++i) {
      if (!at::equal(a.pool[i], b.pool[i])) return false;
    }
    return true;
  }

  // Logical tensor by name, from a flat buffer of every unit; padding included.
  std::map<std::string, Tensor> Logical(const std::vector<Tensor>& flats) const {
    std::map<std::string, Tensor> result;
    for (size_t u = 0; u < plan_.units.size(); ++u) {
      for (const Segment& segment : plan_.units[u].segments) {
        const Tensor held = flats[u].narrow(0, segment.begin, segment.count).view(segment.parameter.HeldShape());
        result[segment.parameter.name] =
            (segment.parameter.transposed ? held.t() : held).to(at::kCPU).to(at::kDouble).contiguous();
      }
    }
    return result;
  }

  const Plan plan_;
  const at::Device device_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<Tensor> weights_, gradients_;
  std::vector<Saved> saved_;
  Tensor workspace_, tokens_, state_;

 private:
  Saved* NewSaved(size_t unit) {
    const int64_t bytes = LayOutSaved(plan_.units[unit].spec, plan_.dtypes, kTokenCount).arena_bytes;
    saved_[unit] = {Filled({bytes}, 0xff, at::kByte), {}};
    return &saved_[unit];
  }
};

// Hugging Face's GPT2LMHeadModel in plain operations, fp64. Sum of losses over the micro-batch.
Tensor ReferenceLoss(const ModelSpec& model, std::map<std::string, Tensor>& w, const Tensor& tokens) {
  const int64_t h = model.hidden_size, heads = model.num_attention_heads;
  const Tensor ids = tokens.narrow(1, 0, kSequence).to(at::kLong),
               labels = tokens.narrow(1, 1, kSequence).reshape({-1}).to(at::kLong);
  Tensor x = at::embedding(w["transformer.wte.weight"], ids) + w["transformer.wpe.weight"].narrow(0, 0, kSequence);
  auto norm = [&](const Tensor& in, const std::string& name) {
    return at::layer_norm(in, {h}, w[name + ".weight"], w[name + ".bias"], model.layer_norm_epsilon);
  };
  auto linear = [&](const Tensor& in, const std::string& name) {
    return in.matmul(w[name + ".weight"]) + w[name + ".bias"];
  };
  const Tensor mask = at::ones({kSequence, kSequence}, at::kBool).triu(1);
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string block = "transformer.h." + std::to_string(layer) + ".";
    const Tensor qkv = linear(norm(x, block + "ln_1"), block + "attn.c_attn");
    auto part = [&](int64_t i) {
      return qkv.narrow(2, i * h, h).view({kMicro, kSequence, heads, h / heads}).transpose(1, 2);
    };
    const Tensor scores = part(0).matmul(part(1).transpose(-1, -2)) / std::sqrt(static_cast<double>(h / heads));
    const Tensor out = scores.masked_fill(mask, -std::numeric_limits<double>::infinity()).softmax(-1).matmul(part(2));
    x = x + linear(out.transpose(1, 2).reshape({kMicro, kSequence, h}), block + "attn.c_proj");
    const Tensor fc = linear(norm(x, block + "ln_2"), block + "mlp.c_fc");
    x = x + linear(at::gelu(fc, "tanh"), block + "mlp.c_proj");
  }
  const Tensor head = w[model.tie_word_embeddings ? "transformer.wte.weight" : "lm_head.weight"];
  const Tensor logits = norm(x, "transformer.ln_f").matmul(head.t()).narrow(2, 0, model.vocab_size);
  return at::cross_entropy_loss(logits.reshape({kTokenCount, model.vocab_size}), labels, {}, at::Reduction::Sum);
}

bool IsKeyBias(const std::string& name) { return name.ends_with("attn.c_attn.bias"); }

// Largest difference of two gradients against the largest value. The exact gradient of a key bias is zero: its third is
// left out.
double GradientError(const std::string& name, const Tensor& got, const Tensor& want) {
  Tensor difference = (got - want).abs();
  const int64_t h = want.numel() / 3;
  if (IsKeyBias(name)) difference = at::cat({difference.narrow(0, 0, h), difference.narrow(0, 2 * h, h)});
  return difference.max().item<double>() / want.abs().max().item<double>();
}

// (on the GPU, tied, compute type)
class GptTest : public ::testing::TestWithParam<std::tuple<bool, bool, DType>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) && !at::hasCUDA()) GTEST_SKIP() << "no GPU, or a program without GPU code";
  }
  at::Device Device() const { return std::get<0>(GetParam()) ? at::kCUDA : at::kCPU; }
  bool Tied() const { return std::get<1>(GetParam()); }
  DType Compute() const { return std::get<2>(GetParam()); }
  Plan MakePlanOfCase() const {
    return MakeTestPlan(Tied(), Compute(), Compute() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32);
  }
  double Tolerance() const {
    return Compute() == DType::kFloat64 ? 1e-12 : (Compute() == DType::kFloat32 ? 1e-5 : 5e-2);
  }
};

TEST_P(GptTest, LossAndEveryGradientEqualAutograd) {
  const Plan plan = MakePlanOfCase();
  Runner run(plan, Device());
  run.Run(/*add=*/false);
  std::map<std::string, Tensor> weights = run.Logical(run.weights_);
  for (auto& [name, tensor] : weights) tensor = tensor.clone().requires_grad_();
  const Tensor loss = ReferenceLoss(plan.model, weights, run.tokens_.cpu());
  (loss / kTokenCount).backward();
  EXPECT_NEAR(run.state_[kLossSum].item<double>() / loss.item<double>(), 1,
              Compute() == DType::kBFloat16 ? 1e-2 : Tolerance());
  EXPECT_EQ(run.state_[kTokens].item<double>(), kTokenCount);
  for (const auto& [name, gradient] : run.Logical(run.gradients_)) {
    EXPECT_LT(GradientError(name, gradient, weights[name].grad()), Tolerance()) << name;
  }
  EXPECT_EQ(run.EvaluationLoss(), run.state_[kLossSum].item<double>());
}

TEST_P(GptTest, SecondMicroBatchAddsAndRecomputationIsBitwise) {
  Runner once(MakePlanOfCase(), Device()), twice(MakePlanOfCase(), Device()), recomputed(MakePlanOfCase(), Device());
  once.Run(false);
  twice.Run(false);
  twice.Run(true);
  recomputed.Run(false, /*recompute=*/true);
  const auto one = once.Logical(once.gradients_), two = twice.Logical(twice.gradients_),
             again = recomputed.Logical(recomputed.gradients_);
  for (const auto& [name, gradient] : one) {
    EXPECT_TRUE(at::equal(gradient, again.at(name))) << name;
    EXPECT_LT(GradientError(name, two.at(name), 2 * gradient), Compute() == DType::kFloat64 ? 1e-13 : 1e-6) << name;
  }
  EXPECT_EQ(twice.state_[kTokens].item<double>(), 2 * kTokenCount);
}

TEST_P(GptTest, PaddedRowsOfTheVocabularyHaveNoGradient) {
  const Plan plan = MakePlanOfCase();
  Runner run(plan, Device());
  run.Run(false);
  const Tensor gradient = run.Logical(run.gradients_)[Tied() ? "transformer.wte.weight" : "lm_head.weight"];
  EXPECT_EQ(gradient.narrow(0, 61, 3).abs().max().item<double>(), 0);
}

std::string CaseName(const ::testing::TestParamInfo<std::tuple<bool, bool, DType>>& info) {
  return std::string(std::get<1>(info.param) ? "tied_" : "untied_") + std::string(Name(std::get<2>(info.param)));
}
const auto kTypes = ::testing::Values(DType::kFloat64, DType::kFloat32, DType::kBFloat16);
INSTANTIATE_TEST_SUITE_P(Cpu, GptTest, ::testing::Combine(::testing::Values(false), ::testing::Bool(), kTypes),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, GptTest, ::testing::Combine(::testing::Values(true), ::testing::Bool(), kTypes),
                         CaseName);

// Logits in pieces of a few rows, as in a micro-batch whose logits exceed one chunk: the same loss and gradients as in
// one piece.
class HeadTest : public ::testing::TestWithParam<DType> {};

TEST_P(HeadTest, ChunksEqualOnePiece) {
  const DType compute = GetParam();
  Plan plan = MakeTestPlan(true, compute, compute == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32);
  const int64_t h = plan.model.hidden_size;
  auto run = [&](int64_t chunk_rows) {
    Runner runner(plan);
    UnitArgs args = runner.Args(3);
    args.input = at::randn({kTokenCount, h}, at::kDouble).to(runner.Compute());
    args.tied_weights = runner.weights_[0];
    args.tied_gradients = runner.gradients_[0];
    args.input_gradient = runner.Activations();
    args.add_gradients = args.add_tied_gradients = false;
    // normed, dnormed, mean, rstd, losses; then logits
    const int64_t c = SizeOf(compute), statistics = compute == DType::kFloat64 ? 8 : 4;
    int64_t bytes = 2 * RoundUp(kTokenCount * h * c, 256) + 3 * RoundUp(kTokenCount * statistics, 256);
    bytes += chunk_rows * 64 * c + (c == 2 ? h * c + 256 : 0);
    args.workspace = at::empty({bytes}, at::kByte);
    MakeUnits(plan).back()->Forward(args);
    return args;
  };
  const UnitArgs whole = run(kTokenCount);
  for (int64_t rows : {1, 4, 20}) {
    const UnitArgs chunked = run(rows);
    const double tolerance = compute == DType::kFloat64 ? 1e-13 : (compute == DType::kFloat32 ? 1e-5 : 2e-2);
    EXPECT_NEAR(chunked.step_state[kLossSum].item<double>() / whole.step_state[kLossSum].item<double>(), 1, tolerance);
    auto error = [](const Tensor& got, const Tensor& want) {
      return ((got - want).abs().max() / want.abs().max()).item<double>();
    };
    EXPECT_LT(error(chunked.input_gradient, whole.input_gradient), tolerance);
    EXPECT_LT(error(chunked.gradients.narrow(0, 0, h), whole.gradients.narrow(0, 0, h)), tolerance);
    EXPECT_LT(error(chunked.tied_gradients.narrow(0, 0, 64 * h), whole.tied_gradients.narrow(0, 0, 64 * h)), tolerance);
    const Segment& positions = plan.units.front().segments[1];
    EXPECT_EQ(chunked.tied_gradients.narrow(0, positions.begin, positions.count).abs().max().item<double>(), 0);
  }
  EXPECT_THROW(run(0), Error);
}
INSTANTIATE_TEST_SUITE_P(Types, HeadTest, ::testing::Values(DType::kFloat64, DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(Name(test.param)); });

TEST(MakeUnitsTest, SpecThatDisagreesWithTheLayerIsRefused) {
  Plan plan = MakeTestPlan(true, DType::kFloat32, DType::kFloat32);
  plan.units[1].spec.saved[3].elements_per_token += 1;
  EXPECT_THROW(MakeUnits(plan), Error);
  plan = MakeTestPlan(true, DType::kFloat32, DType::kFloat32);
  plan.units[1].segments[2].parameter.shape = {24, 71};
  EXPECT_THROW(MakeUnits(plan), Error);
  plan = MakeTestPlan(true, DType::kFloat32, DType::kFloat32);
  plan.units[2].segments.pop_back();
  EXPECT_THROW(MakeUnits(plan), Error);
}

TEST(WorkspaceTest, PartsAreAlignedAndBounded) {
  const Tensor bytes = at::empty({1024}, at::kByte);
  Workspace workspace(bytes);
  const Tensor a = workspace.Take(at::kFloat, {3}), b = workspace.Take(at::kDouble, {2, 2});
  EXPECT_EQ(static_cast<char*>(b.data_ptr()) - static_cast<char*>(a.data_ptr()), 256);
  EXPECT_EQ(workspace.Rest().numel(), 512);
  EXPECT_THROW(workspace.Take(at::kFloat, {129}), Error);
  EXPECT_THROW(ViewOf(bytes, 2, at::kFloat, {1}), Error);
}

}  // namespace
}  // namespace trireme
