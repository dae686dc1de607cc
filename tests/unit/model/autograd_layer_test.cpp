// AutogradLayer against the explicit layers: the same block and head, written as modules of a user's.
#include "engine/model/autograd_layer.h"

#include <ATen/Context.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <cmath>
#include <limits>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/scalar_type.h"
#include "engine/kernels/step_state.h"

namespace trireme {
namespace {

using at::Tensor;

constexpr int64_t kMicro = 3, kSequence = 7, kCount = kMicro * kSequence, kHidden = 24, kHeads = 3, kVocab = 61;

// Hugging Face's GPT-2 block in plain operations, parameters in the order and with the held shapes of the family's, so
// that both have one flat buffer.
struct PlainBlock : torch::nn::Module {
  PlainBlock() {
    const int64_t h = kHidden;
    const auto add = [this](const char* name, at::IntArrayRef shape) {
      return register_parameter(name, at::randn(shape, at::kDouble) * 0.3);
    };
    w = {add("ln_1_weight", {h}), add("ln_1_bias", {h}),   add("qkv", {3 * h, h}),  add("qkv_bias", {3 * h}),
         add("out", {h, h}),      add("out_bias", {h}),    add("ln_2_weight", {h}), add("ln_2_bias", {h}),
         add("fc", {4 * h, h}),   add("fc_bias", {4 * h}), add("down", {h, 4 * h}), add("down_bias", {h})};
  }
  Tensor forward(const Tensor& x) {
    const Tensor qkv = at::linear(at::layer_norm(x, {kHidden}, w[0], w[1]), w[2], w[3]);
    const auto part = [&](int64_t i) {
      return qkv.narrow(2, i * kHidden, kHidden).view({x.size(0), x.size(1), kHeads, kHidden / kHeads}).transpose(1, 2);
    };
    const Tensor mask = at::ones({x.size(1), x.size(1)}, at::kBool).triu(1);
    const Tensor scores = part(0).matmul(part(1).transpose(-1, -2)) / std::sqrt(static_cast<double>(kHidden / kHeads));
    const Tensor attention =
        scores.masked_fill(mask, -std::numeric_limits<double>::infinity()).softmax(-1).matmul(part(2));
    const Tensor mid = x + at::linear(attention.transpose(1, 2).reshape(x.sizes()), w[4], w[5]);
    const Tensor fc = at::linear(at::layer_norm(mid, {kHidden}, w[6], w[7]), w[8], w[9]);
    return mid + at::linear(at::gelu(fc, "tanh"), w[10], w[11]);
  }
  std::vector<Tensor> w;
};

struct PlainHead : torch::nn::Module {
  PlainHead() {
    norm_weight = register_parameter("norm_weight", at::randn({kHidden}, at::kDouble));
    norm_bias = register_parameter("norm_bias", at::randn({kHidden}, at::kDouble));
    weight = register_parameter("weight", at::randn({kVocab, kHidden}, at::kDouble));
  }
  Tensor forward(const Tensor& x) { return at::linear(at::layer_norm(x, {kHidden}, norm_weight, norm_bias), weight); }
  Tensor norm_weight, norm_bias, weight;
};

// A module that a test describes.
struct Free : torch::nn::Module {
  Tensor forward(const Tensor& x) { return run(x); }
  std::function<Tensor(const Tensor&)> run;
};

Plan MakeTestPlan(const OwnModules& modules, DType compute = DType::kFloat64) {
  Config config;
  config.fp64 = compute == DType::kFloat64;
  config.bf16.enabled = compute == DType::kBFloat16;
  config.batch = {kMicro, kMicro, 1};
  ModelSpec model;
  model.name = "tiny";
  model.num_layers = 1;
  model.hidden_size = kHidden;
  model.num_attention_heads = model.num_key_value_heads = kHeads;
  model.intermediate_size = 4 * kHidden;
  model.vocab_size = model.padded_vocab_size = kVocab;
  model.max_position_embeddings = 9;
  model.tie_word_embeddings = false;
  PlanInputs inputs;
  inputs.sequence_length = kSequence;
  DescribeOwnModules(modules, kSequence, model);
  inputs.own_units = OwnUnitSpecs(modules, model, false);
  return MakePlan(config, model, inputs);
}

OwnModules WithBlock(OwnModule block) {
  OwnModules modules;
  modules.blocks.push_back(std::move(block));
  return modules;
}

Tensor Full(at::IntArrayRef shape, double value, at::ScalarType type) {
  return at::full(shape, value, at::TensorOptions().dtype(type));
}

// One unit with its buffers.
struct Bench {
  explicit Bench(const OwnModules& modules, size_t unit = 1, DType compute = DType::kFloat64)
      : plan(MakeTestPlan(modules, compute)), type(ScalarTypeOf(compute)), units(MakeUnits(plan, modules, at::kCPU)) {
    const UnitLayout& layout = plan.units[unit];
    const int64_t head_logits = kCount * 128 * 8;
    args.micro_batch_size = kMicro;
    args.sequence_length = kSequence;
    args.gradients = Full({layout.padded_elements}, std::nan(""), ScalarTypeOf(plan.dtypes.accumulate));
    args.workspace = at::zeros({WorkspaceBytes(plan) + head_logits}, at::kByte);
    args.output = Full({kCount, kHidden}, std::nan(""), type);
    args.input_gradient = Full({kCount, kHidden}, std::nan(""), type);
    args.step_state = at::zeros({kStepStateSize}, at::kDouble);
    args.saved = &saved;
    saved.arena = at::zeros({LayOutSaved(layout.spec, plan.dtypes, kCount).arena_bytes}, at::kByte);
    args.gradient_scale = 1.0 / kCount;
    args.dropout = {0, 7, 3, 12};
    args.weights = at::zeros({layout.padded_elements}, at::kDouble).to(type);
    object = units[unit].get();
  }

  Plan plan;
  at::ScalarType type;
  std::vector<std::unique_ptr<Unit>> units;
  Unit* object = nullptr;
  UnitArgs args;
  Saved saved;
};

double Error2(const Tensor& got, const Tensor& want) { return ((got - want).norm() / want.norm()).item<double>(); }

class BlockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(5);
    const OwnModules modules = WithBlock(Own(std::make_shared<PlainBlock>()));
    explicit_ = std::make_unique<Bench>(OwnModules{});
    own_ = std::make_unique<Bench>(modules);
    weights_ = InitialValues(modules.blocks[0], own_->plan.units[1], at::kDouble);
    ASSERT_EQ(weights_.numel(), explicit_->plan.units[1].padded_elements);
    input_ = at::randn({kCount, kHidden}, at::kDouble);
    output_gradient_ = at::randn({kCount, kHidden}, at::kDouble);
    for (Bench* bench : {explicit_.get(), own_.get()}) {
      bench->args.weights = weights_.clone();
      bench->args.input = input_.clone();
      bench->args.output_gradient = output_gradient_.clone();
    }
    explicit_->args.add_gradients = own_->args.add_gradients = false;
    explicit_->object->Forward(explicit_->args);
    explicit_->object->Backward(explicit_->args);
  }
  void ExpectEqualGradients(double factor = 1) {
    EXPECT_LE(Error2(own_->args.input_gradient, explicit_->args.input_gradient), 1e-12);
    for (const Segment& segment : own_->plan.units[1].segments) {
      const auto part = [&](const Tensor& flat) { return flat.narrow(0, segment.begin, segment.count); };
      Tensor got = part(own_->args.gradients), want = factor * part(explicit_->args.gradients);
      if (segment.parameter.name.ends_with("qkv_bias")) {  // the key bias has no gradient but round-off
        got.narrow(0, kHidden, kHidden).zero_();
        want.narrow(0, kHidden, kHidden).zero_();
      }
      EXPECT_LE(Error2(got, want), 1e-12) << segment.parameter.name;
    }
  }
  // As ZeRO 3 does: the weights lie elsewhere, and where they lay is something else.
  void MoveWeights() {
    const Tensor before = own_->args.weights;
    own_->args.weights = before.clone();
    before.fill_(std::nan(""));
  }

  std::unique_ptr<Bench> explicit_, own_;
  Tensor weights_, input_, output_gradient_;
};

TEST_F(BlockTest, EqualsTheExplicitBlock) {
  own_->object->Forward(own_->args);
  EXPECT_LE(Error2(own_->args.output, explicit_->args.output), 1e-12);
  own_->object->Backward(own_->args);
  ExpectEqualGradients();
}

TEST_F(BlockTest, BackwardReadsTheWeightsWhereTheyAreThen) {
  own_->object->Forward(own_->args);
  MoveWeights();
  own_->object->Backward(own_->args);
  ExpectEqualGradients();
}

TEST_F(BlockTest, SecondMicroBatchAdds) {
  for (const bool add : {false, true}) {
    own_->args.add_gradients = add;
    own_->object->Forward(own_->args);
    own_->object->Backward(own_->args);
  }
  ExpectEqualGradients(2);
}

TEST_F(BlockTest, RecomputationKeepsNothingBefore) {
  own_->args.use = ForwardUse::kRecompute;
  own_->object->Forward(own_->args);
  EXPECT_LE(Error2(own_->args.output, explicit_->args.output), 1e-12);
  EXPECT_TRUE(own_->saved.pool.empty());
  MoveWeights();
  own_->args.use = ForwardUse::kKeep;
  const Tensor output = std::exchange(own_->args.output, Tensor());
  own_->object->Forward(own_->args);
  own_->object->Backward(own_->args);
  ExpectEqualGradients();
}

TEST_F(BlockTest, EvaluationGivesTheOutputAlone) {
  own_->args.use = ForwardUse::kEvaluate;
  own_->object->Forward(own_->args);
  EXPECT_LE(Error2(own_->args.output, explicit_->args.output), 1e-12);
  EXPECT_TRUE(own_->saved.pool.empty());
}

TEST_F(BlockTest, Bf16ComputesWithFp32Gradients) {
  const OwnModules modules = WithBlock(Own(std::make_shared<PlainBlock>()));
  Bench bench(modules, 1, DType::kBFloat16);
  bench.args.weights = weights_.to(at::kBFloat16);
  bench.args.input = input_.to(at::kBFloat16);
  bench.args.output_gradient = output_gradient_.to(at::kBFloat16);
  bench.args.add_gradients = false;
  bench.object->Forward(bench.args);
  bench.object->Backward(bench.args);
  EXPECT_EQ(bench.args.gradients.scalar_type(), at::kFloat);
  EXPECT_LE(Error2(bench.args.output.to(at::kDouble), explicit_->args.output), 2e-2);
  EXPECT_LE(Error2(bench.args.input_gradient.to(at::kDouble), explicit_->args.input_gradient), 5e-2);
  const Segment& down = bench.plan.units[1].segments[10];
  EXPECT_LE(Error2(bench.args.gradients.narrow(0, down.begin, down.count).to(at::kDouble),
                   explicit_->args.gradients.narrow(0, down.begin, down.count)),
            5e-2);
}

TEST(AutogradLayerHead, EqualsTheExplicitHead) {
  at::manual_seed(6);
  OwnModules modules;
  modules.head = Own(std::make_shared<PlainHead>());
  Bench own(modules, 2), family(OwnModules{}, 2);
  const Tensor weights = InitialValues(modules.head, own.plan.units[2], at::kDouble);
  ASSERT_EQ(weights.numel(), family.plan.units[2].padded_elements);
  Tensor tokens = at::randint(kVocab, {kMicro, kSequence + 1}, at::kInt);
  tokens.narrow(0, 1, 1).narrow(1, 3, 2).fill_(-1);  // no tokens: no loss
  const Tensor input = at::randn({kCount, kHidden}, at::kDouble);
  for (Bench* bench : {&own, &family}) {
    bench->args.weights = weights.clone();
    bench->args.tokens = tokens;
    bench->args.input = input.clone();
    bench->args.add_gradients = false;
    bench->args.output = Tensor();
    bench->args.saved = nullptr;
    kernels::InitStepState(bench->args.step_state, 1);
    bench->object->Forward(bench->args);
  }
  EXPECT_NEAR(own.args.step_state[kLossSum].item<double>() / family.args.step_state[kLossSum].item<double>(), 1, 1e-12);
  EXPECT_EQ(own.args.step_state[kTokens].item<double>(), kCount - 2);
  EXPECT_LE(Error2(own.args.input_gradient, family.args.input_gradient), 1e-12);
  for (const Segment& segment : own.plan.units[2].segments) {
    EXPECT_LE(Error2(own.args.gradients.narrow(0, segment.begin, segment.count),
                     family.args.gradients.narrow(0, segment.begin, segment.count)),
              1e-12)
        << segment.parameter.name;
  }
  own.args.input_gradient = Tensor();
  own.args.use = ForwardUse::kEvaluate;
  own.object->Forward(own.args);
  EXPECT_EQ(own.args.step_state[kEvalLossSum].item<double>(), own.args.step_state[kLossSum].item<double>());
}

TEST(AutogradLayerEmbedding, PaddingIsAnyTokenAndBackwardReadsWeights) {
  auto module = std::make_shared<Free>();
  const Tensor table = module->register_parameter("table", at::randn({kVocab, kHidden}, at::kDouble));
  const Tensor turn = module->register_parameter("turn", at::randn({kHidden, kHidden}, at::kDouble));
  module->run = [=](const Tensor& ids) { return at::linear(at::embedding(table, ids), turn); };
  OwnModules modules;
  modules.embedding = Own(module);
  Bench bench(modules, 0);
  bench.args.weights = InitialValues(modules.embedding, bench.plan.units[0], at::kDouble);
  bench.args.tokens = at::full({kMicro, kSequence + 1}, -1, at::kInt);
  bench.args.output_gradient = at::ones({kCount, kHidden}, at::kDouble);
  bench.args.add_gradients = false;
  const Tensor want = bench.args.weights.narrow(0, bench.plan.units[0].segments[1].begin, kHidden * kHidden)
                          .view({kHidden, kHidden})
                          .sum(0) *
                      kCount;
  bench.object->Forward(bench.args);
  bench.args.weights = bench.args.weights.clone();
  bench.object->Backward(bench.args);
  EXPECT_LE(Error2(bench.args.gradients.narrow(0, 0, kHidden), want), 1e-12);  // of token 0
  EXPECT_EQ(bench.args.gradients.narrow(0, kHidden, (kVocab - 1) * kHidden).abs().max().item<double>(), 0);
}

// What the error of `action` is named; "" without one.
template <typename Action>
std::string ErrorOf(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.id() + ": " + error.message();
  }
  return "";
}

std::shared_ptr<Free> Scaling(std::function<Tensor(const Tensor&, const Tensor&)> run) {
  auto module = std::make_shared<Free>();
  const Tensor scale = module->register_parameter("scale", at::ones({kHidden}, at::kDouble));
  module->run = [=](const Tensor& x) { return run(x, scale); };
  return module;
}

std::string RunOnce(std::shared_ptr<Free> module, ForwardUse use) {
  Bench bench(WithBlock(Own(std::move(module))));
  bench.args.input = at::ones({kCount, kHidden}, at::kDouble);
  bench.args.use = use;
  return ErrorOf([&] { bench.object->Forward(bench.args); });
}

TEST(AutogradLayerErrors, WrongModulesAreNamedWithNumbers) {
  const ForwardUse keep = ForwardUse::kKeep, recompute = ForwardUse::kRecompute;
  EXPECT_EQ(RunOnce(Scaling([](const Tensor& x, const Tensor& s) { return x * s; }), keep), "");
  EXPECT_EQ(RunOnce(Scaling([](const Tensor& x, const Tensor&) { return x.narrow(2, 0, 5); }), keep),
            "OWN006: the module returned [3, 7, 5], wanted [3, 7, 24]");
  EXPECT_EQ(RunOnce(Scaling([](const Tensor&, const Tensor&) { return Tensor(); }), keep),
            "OWN006: the module returned no tensor, wanted [3, 7, 24]");
  for (const ForwardUse use : {keep, recompute}) {
    const auto in_place = [](const Tensor& x, const Tensor& s) { return Tensor(x).mul_(s); };
    EXPECT_EQ(RunOnce(Scaling(in_place), use).substr(0, 6), "OWN005");
  }
  const auto mismatch = [](const Tensor& x, const Tensor&) { return at::linear(x, at::ones({4, 9}, at::kDouble)); };
  EXPECT_NE(RunOnce(Scaling(mismatch), keep).find("OWN005: the module failed on its input [3, 7, 24]: "),
            std::string::npos);
  auto counting = Scaling([](const Tensor& x, const Tensor& s) { return x * s; });
  const Tensor count = counting->register_buffer("count", at::zeros({2}, at::kLong));
  counting->run = [=](const Tensor& x) { return count.add(1), Tensor(count).add_(1), x; };
  EXPECT_EQ(RunOnce(counting, keep), "OWN007: the module changed its buffer number 0 of shape [2]");
}

TEST(AutogradLayerErrors, ParametersThatCannotBeTrainedAreRefused) {
  const auto plain = [](const Tensor& x, const Tensor& s) { return x * s; };
  auto frozen = Scaling(plain);
  frozen->parameters()[0].set_requires_grad(false);
  EXPECT_EQ(ErrorOf([&] { MakeTestPlan(WithBlock(Own(frozen))); }), "OWN002: has requires_grad false");
  auto shared = Scaling(plain);
  OwnModules twice = WithBlock(Own(shared));
  twice.head = Own(shared);
  EXPECT_EQ(ErrorOf([&] { MakeTestPlan(twice); }), "OWN001: is a parameter of two modules");
  OwnModules namesakes = WithBlock(Own(Scaling(plain), "mine"));
  namesakes.head = Own(Scaling(plain), "mine");
  EXPECT_EQ(ErrorOf([&] { MakeTestPlan(namesakes); }).substr(0, 6), "PLN020");
  const auto used = Scaling(plain);
  {
    Bench bench(WithBlock(Own(used)));
    bench.args.input = at::ones({kCount, kHidden}, at::kDouble);
    bench.object->Forward(bench.args);
    EXPECT_EQ(ErrorOf([&] { MakeTestPlan(WithBlock(Own(used))); }).substr(0, 6), "OWN003");
  }
  EXPECT_EQ(used->parameters()[0].numel(), 0);  // of buffers that are gone
  EXPECT_EQ(ErrorOf([&] { MakeTestPlan(WithBlock(Own(used))); }).substr(0, 6), "OWN003");
}

TEST(AutogradLayerModules, ParametersThatAreNotReadHaveGradientZero) {
  auto module = Scaling([](const Tensor& x, const Tensor&) { return x * 2; });
  Bench bench(WithBlock(Own(module)));
  bench.args.input = at::ones({kCount, kHidden}, at::kDouble);
  bench.args.output_gradient = at::ones({kCount, kHidden}, at::kDouble);
  bench.args.add_gradients = false;
  bench.object->Forward(bench.args);
  bench.object->Backward(bench.args);
  EXPECT_EQ(bench.args.gradients.narrow(0, 0, kHidden).abs().max().item<double>(), 0);
  EXPECT_EQ(bench.args.input_gradient.sub(2).abs().max().item<double>(), 0);
}

TEST(AutogradLayerModules, AFunctionIsAUnitToo) {
  for (const double factor : {1.0, 3.0}) {  // 1: the input itself comes back
    Bench bench(WithBlock({nullptr, [=](const Tensor& x) { return factor == 1 ? x : x * factor; }, ""}));
    bench.args.input = at::ones({kCount, kHidden}, at::kDouble);
    bench.args.output_gradient = at::ones({kCount, kHidden}, at::kDouble);
    bench.object->Forward(bench.args);
    bench.object->Backward(bench.args);
    EXPECT_EQ(bench.args.output.sub(factor).abs().max().item<double>(), 0);
    EXPECT_EQ(bench.args.input_gradient.sub(factor).abs().max().item<double>(), 0);
  }
}

TEST(AutogradLayerModules, OneParameterUnderTwoNamesIsOne) {
  auto outer = Scaling([](const Tensor& x, const Tensor& s) { return x * s * s; });
  auto inner = std::make_shared<Free>();
  inner->register_parameter("again", outer->parameters()[0]);
  outer->register_module("inner", inner);
  const Plan plan = MakeTestPlan(WithBlock(Own(outer)));
  ASSERT_EQ(plan.units[1].segments.size(), 1U);
  EXPECT_EQ(plan.units[1].segments[0].parameter.name, "modules.1.scale");
  EXPECT_FALSE(plan.units[1].segments[0].parameter.decay);
  EXPECT_EQ(plan.num_parameters, kVocab * kHidden * 2 + 9 * kHidden + 2 * kHidden + kHidden);
}

// The draws belong to seed, step, sample and unit, and the generator goes on as if nothing had been drawn.
TEST(AutogradLayerModules, DrawsAreRepeatedAndTheGeneratorIsLeftAlone) {
  auto module = Scaling([](const Tensor& x, const Tensor& s) { return at::dropout(x * s, 0.5, true); });
  Bench bench(WithBlock(Own(module)));
  bench.args.weights.fill_(1);
  bench.args.input = at::ones({kCount, kHidden}, at::kDouble);
  const auto draw = [&](int64_t step, int64_t sample) {
    bench.args.dropout.step = step;
    bench.args.dropout.first_sample = sample;
    bench.object->Forward(bench.args);
    return bench.args.output.clone();
  };
  at::manual_seed(11);
  const Tensor want = at::randn({4}, at::kDouble);
  at::manual_seed(11);
  const Tensor first = draw(1, 0), again = draw(1, 0), other_step = draw(2, 0), other_sample = draw(1, 3);
  EXPECT_TRUE(at::randn({4}, at::kDouble).equal(want));
  EXPECT_TRUE(first.equal(again));
  EXPECT_FALSE(first.equal(other_step));
  EXPECT_FALSE(first.equal(other_sample));
}

}  // namespace
}  // namespace trireme
