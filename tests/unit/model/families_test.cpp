// The units of every family against the same model written with autograd.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/model/rotary.h"
#include "engine/model/unit.h"
#include "tests/unit/model/reference.h"
#include "tests/unit/model/runner.h"

namespace trireme {
namespace {

using at::Tensor;
using testing::kMicro;
using testing::kSequence;
using testing::kTokenCount;
using testing::Runner;
using testing::Tensors;

ModelSpec Model(const std::string& name, Family family) {
  ModelSpec model;
  model.name = name;
  model.family = family;
  model.num_layers = 2;
  model.hidden_size = 24;
  model.num_attention_heads = model.num_key_value_heads = 3;
  model.intermediate_size = 96;
  model.vocab_size = 61;
  model.padded_vocab_size = 64;
  model.max_position_embeddings = 9;
  model.tie_word_embeddings = false;
  return model;
}

ModelSpec Llama(const std::string& name) {
  ModelSpec model = Model(name, Family::kLlama);
  model.activation = Activation::kSilu;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_size = 6;
  model.intermediate_size = 40;
  model.layer_norm_epsilon = 1e-6;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = false;
  return model;
}

ModelSpec NeoX(const std::string& name) {
  ModelSpec model = Model(name, Family::kGptNeoX);
  model.activation = Activation::kGelu;
  model.rope.rotary_fraction = 0.25;
  model.parallel_residual = true;
  return model;
}

std::vector<ModelSpec> Models() {
  std::vector<ModelSpec> models{Model("gpt2", Family::kGpt2), Model("gpt2_exact_gelu_tied", Family::kGpt2),
                                Llama("llama_grouped"),       Llama("llama_biases"),
                                Llama("llama_wide_heads"),    Llama("llama_one_key"),
                                Llama("qwen2_tied"),          NeoX("neox_parallel"),
                                NeoX("neox_serial_tied"),     NeoX("neox_no_attention_bias")};
  models[1].activation = Activation::kGelu;
  models[1].tie_word_embeddings = true;
  models[3].qkv_bias = models[3].attention_out_bias = models[3].mlp_bias = true;
  models[3].rope = {.scaling = RopeSpec::Scaling::kYarn, .factor = 4, .original_max_position_embeddings = 5};
  models[4].head_size = 10;  // 4 x 10 is not 24
  models[4].intermediate_size = 37;
  models[4].rope = {
      .theta = 500, .scaling = RopeSpec::Scaling::kLlama3, .factor = 8, .original_max_position_embeddings = 9};
  models[5].num_key_value_heads = 1;
  models[5].hidden_size = 20;
  models[6].family = Family::kQwen2;
  models[6].qkv_bias = models[6].tie_word_embeddings = true;
  models[8].parallel_residual = false;
  models[8].tie_word_embeddings = true;
  models[9].qkv_bias = models[9].attention_out_bias = false;
  models[9].rope.rotary_fraction = 1;
  return models;
}

double Largest(const Tensor& x) { return x.abs().max().item<double>(); }
double Error(const Tensor& got, const Tensor& want) { return Largest(got - want) / Largest(want); }

// Only what the rotation makes of a key bias reaches the loss: terms of the size of a value bias's gradient that nearly
// cancel. With 16 bits their round-off is measured against these terms.
std::string ValueBias(std::string key_bias) {
  return key_bias.replace(key_bias.find("k_proj"), std::string("k_proj").size(), "v_proj");
}

// (on the GPU, model, compute type, dropout)
class FamilyTest : public ::testing::TestWithParam<std::tuple<bool, ModelSpec, DType, double>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) && !at::hasCUDA()) GTEST_SKIP() << "no GPU, or a program without GPU code";
  }
  at::Device Device() const { return std::get<0>(GetParam()) ? at::kCUDA : at::kCPU; }
  DType Compute() const { return std::get<2>(GetParam()); }
  Plan PlanOfCase(Recompute recompute = Recompute::kNone) const {
    return testing::PlanOf(std::get<1>(GetParam()), Compute(), std::get<3>(GetParam()), recompute);
  }
  double Tolerance() const {
    return Compute() == DType::kFloat64 ? 1e-12 : (Compute() == DType::kFloat32 ? 1e-5 : 5e-2);
  }
};

TEST_P(FamilyTest, LossAndEveryGradientEqualAutograd) {
  const Plan plan = PlanOfCase();
  Runner run(plan, Device());
  run.Run(/*add=*/false);
  Tensors weights = run.Logical(run.weights_);
  for (auto& [name, tensor] : weights) tensor = tensor.clone().requires_grad_();
  const Tensor loss = testing::ReferenceLoss(plan.model, weights, run.tokens_.cpu(), run.dropout_);
  (loss / kTokenCount).backward();
  EXPECT_NEAR(run.state_[kLossSum].item<double>() / loss.item<double>(), 1, Tolerance());
  EXPECT_EQ(run.state_[kTokens].item<double>(), kTokenCount);
  for (const auto& [name, gradient] : run.Logical(run.gradients_)) {
    const Tensor want = weights[name].grad();
    const double largest = Compute() == DType::kBFloat16 && name.ends_with("k_proj.bias")
                               ? Largest(weights[ValueBias(name)].grad())
                               : Largest(want);
    EXPECT_LT(Largest(gradient - want) / largest, Tolerance()) << name;
  }
  const double evaluated = run.EvaluationLoss();
  const Tensor plain = testing::ReferenceLoss(plan.model, run.Logical(run.weights_), run.tokens_.cpu(), {});
  EXPECT_NEAR(evaluated / plain.item<double>(), 1, Tolerance());
}

TEST_P(FamilyTest, PartsOfBackwardRecomputationAndSums) {
  Runner once(PlanOfCase(), Device()), twice(PlanOfCase(), Device()), recomputed(PlanOfCase(), Device()),
      split(PlanOfCase(), Device());
  once.Run(false);
  twice.Run(false);
  twice.Run(true, Runner::Way::kSplit);
  recomputed.Run(false, Runner::Way::kRecomputed);
  split.Run(false, Runner::Way::kSplit);
  const Tensors one = once.Logical(once.gradients_), two = twice.Logical(twice.gradients_),
                again = recomputed.Logical(recomputed.gradients_), parts = split.Logical(split.gradients_);
  for (const auto& [name, gradient] : one) {
    EXPECT_TRUE(at::equal(gradient, again.at(name))) << name;
    EXPECT_TRUE(at::equal(gradient, parts.at(name))) << name;
    EXPECT_LT(Error(two.at(name), 2 * gradient), Compute() == DType::kFloat64 ? 1e-13 : 1e-6) << name;
  }
}

// What the spec calls cheap is not kept, and Backward, in one part or two, makes the same of it; so do evaluation and a
// second Forward.
TEST_P(FamilyTest, CheapRecomputationIsBitwise) {
  const Plan plan = PlanOfCase(), cheap = PlanOfCase(Recompute::kCheap);
  const auto bytes = [](const Plan& of) { return LayOutSaved(of.units[1].spec, of.dtypes, kTokenCount).arena_bytes; };
  EXPECT_LT(bytes(cheap), bytes(plan));
  Runner keep(plan, Device()), whole(cheap, Device()), again(cheap, Device()), split(cheap, Device());
  keep.Run(false);
  whole.Run(false);
  again.Run(false, Runner::Way::kRecomputed);
  split.Run(false, Runner::Way::kSplit);
  const Tensors want = keep.Logical(keep.gradients_);
  for (const Runner* run : {&whole, &again, &split}) {
    const Tensors got = run->Logical(run->gradients_);
    for (const auto& [name, gradient] : want) EXPECT_TRUE(at::equal(got.at(name), gradient)) << name;
  }
  EXPECT_EQ(whole.EvaluationLoss(), keep.EvaluationLoss());
}

std::string CaseName(const ::testing::TestParamInfo<FamilyTest::ParamType>& info) {
  return std::get<1>(info.param).name + "_" + std::string(Name(std::get<2>(info.param))) +
         (std::get<3>(info.param) > 0 ? "_dropout" : "");
}
const auto kTypes = ::testing::Values(DType::kFloat64, DType::kFloat32, DType::kBFloat16);
INSTANTIATE_TEST_SUITE_P(Cpu, FamilyTest,
                         ::testing::Combine(::testing::Values(false), ::testing::ValuesIn(Models()), kTypes,
                                            ::testing::Values(0.0, 0.1)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, FamilyTest,
                         ::testing::Combine(::testing::Values(true), ::testing::ValuesIn(Models()), kTypes,
                                            ::testing::Values(0.0, 0.1)),
                         CaseName);

// Generation: a prompt of some tokens, then one or two at a time, gives the logits of the whole sequence at once.
class DecodeTest : public ::testing::TestWithParam<std::tuple<bool, ModelSpec, Recompute>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) && !at::hasCUDA()) GTEST_SKIP() << "no GPU, or a program without GPU code";
  }
};

class Decoder {
 public:
  Decoder(Runner& run, int64_t capacity) : run_(run) {
    const ModelSpec& model = run.plan_.model;
    for (int64_t i = 0; i < model.num_layers; ++i) {
      const std::vector<int64_t> shape{kMicro, model.KeyValueHeads(), capacity, model.HeadSize()};
      caches_.push_back(
          {run.Filled(shape, std::nan(""), run.Compute()), run.Filled(shape, std::nan(""), run.Compute())});
    }
  }

  // Logits [micro, count, padded vocabulary] of `count` tokens after the `past` that are cached.
  Tensor Next(int64_t past, int64_t count) {
    const int64_t tokens = kMicro * count;
    Tensor x;
    UnitArgs args;
    for (size_t u = 0; u < run_.units_.size(); ++u) {
      args = run_.Args(u);
      args.sequence_length = count;
      args.dropout = {};
      args.tokens = run_.tokens_.narrow(1, past, count + 1).contiguous();
      args.workspace = run_.Filled({UnsavedWorkspaceBytes(run_.plan_, tokens)}, 0xff, at::kByte);
      args.input = x;
      if (u + 1 == run_.units_.size()) break;
      args.output = x = run_.Activations(tokens);
      run_.units_[u]->Decode(args, u == 0 ? nullptr : &caches_[u - 1], past);
    }
    const Tensor logits = run_.Filled({tokens, run_.plan_.model.padded_vocab_size}, 0, run_.Compute());
    run_.units_.back()->Logits(args, 0, logits);
    return logits.view({kMicro, count, -1});
  }

 private:
  Runner& run_;
  std::vector<KeyValueCache> caches_;
};

TEST_P(DecodeTest, CachedKeysGiveTheLogitsOfTheWhole) {
  const ModelSpec& model = std::get<1>(GetParam());
  const Plan plan = testing::PlanOf(model, DType::kFloat64, 0, std::get<2>(GetParam()));
  Runner run(plan, std::get<0>(GetParam()) ? at::kCUDA : at::kCPU);
  const Tensor want =
      testing::ReferenceLogits(model, run.Logical(run.weights_), run.tokens_.narrow(1, 0, kSequence).cpu(), {});
  Decoder decoder(run, kSequence + 3);
  std::vector<Tensor> got;
  int64_t past = 0;
  for (const int64_t count : {3, 1, 2, 1}) {
    got.push_back(decoder.Next(past, count));
    past += count;
  }
  const Tensor all = at::cat(got, 1).narrow(2, 0, model.vocab_size).cpu();
  EXPECT_LT(Error(all, want), 1e-12);
}

std::string DecodeName(const ::testing::TestParamInfo<DecodeTest::ParamType>& info) {
  return std::get<1>(info.param).name + (std::get<2>(info.param) == Recompute::kCheap ? "_cheap" : "");
}
const auto kPolicies = ::testing::Values(Recompute::kNone, Recompute::kCheap);
INSTANTIATE_TEST_SUITE_P(Cpu, DecodeTest,
                         ::testing::Combine(::testing::Values(false), ::testing::ValuesIn(Models()), kPolicies),
                         DecodeName);
INSTANTIATE_TEST_SUITE_P(Gpu, DecodeTest,
                         ::testing::Combine(::testing::Values(true), ::testing::ValuesIn(Models()), kPolicies),
                         DecodeName);

// A scaling that looks at the length: the rows that were turned for a short text stay, the table follows the long one.
TEST(RotaryTable, FollowsTheLengthThatIsLookedAt) {
  ModelSpec model = Llama("dynamic");
  model.max_position_embeddings = 4;
  model.rope = {.scaling = RopeSpec::Scaling::kDynamic, .factor = 2};
  Runner run(testing::PlanOf(model, DType::kFloat64));
  run.Run(false);
  Tensors weights = run.Logical(run.weights_);
  const double want = testing::ReferenceLoss(model, weights, run.tokens_, {}).item<double>();
  EXPECT_NEAR(run.state_[kLossSum].item<double>() / want, 1, 1e-12);
  Decoder decoder(run, 4);
  const Tensor logits = decoder.Next(0, 4).narrow(2, 0, model.vocab_size);
  EXPECT_LT(Error(logits, testing::ReferenceLogits(model, weights, run.tokens_.narrow(1, 0, 4), {})), 1e-12);
}

TEST(RotaryTable, TakesTheBytesThatThePlanCounts) {
  for (const ModelSpec& model : Models()) {
    if (!model.rotary()) continue;
    for (const DType compute : {DType::kFloat64, DType::kBFloat16}) {
      RotaryTable table(testing::PlanOf(model, compute));
      const RotaryTable::Values values = table.For(3, at::kCPU);
      EXPECT_EQ(static_cast<int64_t>(values.cosines.nbytes() + values.sines.nbytes()),
                RopeTableBytes(model, compute, kSequence));
      EXPECT_TRUE(table.For(5, at::kCPU).cosines.is_same(values.cosines)) << "made anew";
    }
  }
}

TEST(MakeUnitsTest, SpecThatDisagreesWithTheLayerIsRefused) {
  for (const ModelSpec& model : Models()) {
    const Plan plan = testing::PlanOf(model, DType::kFloat32);
    Plan wrong = plan;
    wrong.units[1].spec.saved[3].elements_per_token += 1;
    EXPECT_THROW(MakeUnits(wrong), trireme::Error) << model.name;
    wrong = plan;
    wrong.units[1].spec.deferred[1].elements_per_token += 1;
    EXPECT_THROW(MakeUnits(wrong), trireme::Error) << model.name;
    wrong = plan;
    wrong.units[1].segments[2].parameter.shape = {24, 71};
    EXPECT_THROW(MakeUnits(wrong), trireme::Error) << model.name;
    wrong = plan;
    wrong.units[2].segments.pop_back();
    EXPECT_THROW(MakeUnits(wrong), trireme::Error) << model.name;
    if (plan.units[1].segments[2].parameter.joined) {
      wrong = plan;
      wrong.units[1].segments[2].begin += 1;
      EXPECT_THROW(MakeUnits(wrong), trireme::Error) << model.name;
    }
  }
}

}  // namespace
}  // namespace trireme
