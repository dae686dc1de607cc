// A block that is split over ranks gives the output and every gradient that plain PyTorch gives for the whole block
// (tests/compat/fixtures/oracle/block_gradients.py), in double precision.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/execute/tensor_lane.h"
#include "engine/kernels/scalar_type.h"
#include "engine/model/unit.h"
#include "engine/plan/plan.h"
#include "tests/support/run_threads.h"

namespace trireme::test {
namespace {

using at::Tensor;
using Tensors = std::map<std::string, Tensor>;

constexpr int64_t kMicro = 3, kSequence = 8, kRows = kMicro * kSequence, kHidden = 12;

// A safetensors file of fp64: 8 bytes of length, that much JSON, data.
Tensors ReadFixture(const std::string& name) {
  std::ifstream file(std::string(TRIREME_FIXTURES "/blocks/") + name, std::ios::binary);
  uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof length);
  std::string head(length, ' ');
  file.read(head.data(), static_cast<std::streamsize>(length));
  Tensors tensors;
  const nlohmann::json entries = nlohmann::json::parse(head);
  for (const auto& [key, entry] : entries.items()) {
    if (key == "__metadata__") continue;
    const Tensor tensor = at::empty(entry["shape"].get<std::vector<int64_t>>(), at::kDouble);
    file.seekg(static_cast<std::streamoff>(8 + length + entry["data_offsets"][0].get<uint64_t>()));
    file.read(static_cast<char*>(tensor.mutable_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
    tensors[key] = tensor;
  }
  return tensors;
}

ModelSpec ModelOf(Family family) {
  ModelSpec model;
  model.name = "one block";
  model.family = family;
  model.num_layers = 1;
  model.hidden_size = kHidden;
  model.head_size = 2;
  model.num_attention_heads = model.num_key_value_heads = 6;
  model.intermediate_size = 48;
  model.vocab_size = 61;
  model.max_position_embeddings = 16;
  if (family == Family::kGpt2) return model;
  model.activation = Activation::kSilu;
  model.num_attention_heads = 12;
  model.intermediate_size = 18;
  model.layer_norm_epsilon = 1e-6;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = false;
  model.tie_word_embeddings = false;
  return model;
}

Plan PlanOf(Family family, int tp, bool sequence_parallel) {
  Config config;
  config.batch = {kMicro, kMicro, 1};
  config.world_size = tp;
  config.dp_size = 1;
  config.tensor_parallel = {tp, sequence_parallel};
  ModelSpec model = ModelOf(family);
  PadVocabulary(model, tp);
  PlanInputs inputs;
  inputs.world_size = tp;
  inputs.sequence_length = kSequence;
  inputs.fp64 = true;
  return MakePlan(config, model, inputs);
}

double Difference(const Tensor& got, const Tensor& want) {
  return (got - want).abs().max().item<double>() / want.abs().max().item<double>();
}

Tensor NotANumber(at::IntArrayRef shape) { return at::full(shape, std::nan(""), at::kDouble); }

// One rank's block, and what it holds of the whole tensors.
class SplitBlock {
 public:
  SplitBlock(const Plan& plan, TensorParallel& tp, const Tensors& whole)
      : plan_(plan), layout_(plan_.units[1]), units_(MakeUnits(plan_)), tp_(tp), whole_(whole) {
    weights_ = at::zeros({layout_.padded_elements}, at::kDouble);
    gradients_ = NotANumber({layout_.padded_elements});
    for (const Segment& segment : layout_.segments) {
      const Tensor flat = AsHeld(segment, "weight/"), mine = weights_.narrow(0, segment.begin, segment.count);
      for (const HeldRun& run : HeldRuns(segment.parameter, tp_.rank())) {
        mine.narrow(0, run.held_begin, run.count).copy_(flat.narrow(0, run.whole_begin, run.count));
      }
    }
  }

  // `times` passes add up the gradients.
  void Run(bool in_two_parts, int times) {
    for (int i = 0; i < times; ++i) {
      const UnitLayout& layout = layout_;
      Saved saved{Bytes(LayOutSaved(layout.spec, plan_.dtypes, kRows).arena_bytes), {}};
      UnitArgs args = Args();
      args.saved = &saved;
      args.input = Own("input");
      args.output = output_ = NotANumber({plan_.boundary_tokens(), kHidden});
      units_[1]->Forward(args);
      args.output = Tensor();
      args.output_gradient = Own("output_gradient").clone();
      args.input_gradient = input_gradient_ = NotANumber({plan_.boundary_tokens(), kHidden});
      args.add_gradients = i > 0;
      if (!in_two_parts) {
        units_[1]->Backward(args);
        continue;
      }
      if (i == 0) gradients_.zero_();
      args.add_gradients = true;
      args.deferred = Bytes(LayOutSaved(layout.spec.deferred, plan_.dtypes, kRows).arena_bytes);
      units_[1]->BackwardInput(args);
      units_[1]->BackwardWeight(args);
    }
    SumReplicatedGradients();
  }

  void ExpectEqualsWhole(double times) const {
    EXPECT_LE(Difference(output_, Own("output")), 1e-13);
    EXPECT_LE(Difference(input_gradient_, Own("input_gradient")), 1e-13);
    for (const Segment& segment : layout_.segments) {
      const Tensor flat = AsHeld(segment, "gradient/"), mine = gradients_.narrow(0, segment.begin, segment.count);
      for (const HeldRun& run : HeldRuns(segment.parameter, tp_.rank())) {
        const Tensor got = mine.narrow(0, run.held_begin, run.count),
                     want = times * flat.narrow(0, run.whole_begin, run.count);
        const double error = (got - want).abs().max().item<double>() / (times * flat.abs().max().item<double>());
        EXPECT_LE(error, 1e-13) << segment.parameter.name;
      }
    }
  }

 private:
  Tensor Bytes(int64_t count) const { return at::full({count}, 0xff, at::kByte); }
  // The whole logical tensor, row-major as flat buffers hold it.
  Tensor AsHeld(const Segment& segment, const std::string& what) const {
    const Tensor logical = whole_.at(what + segment.parameter.name);
    return (segment.parameter.transposed ? logical.t() : logical).contiguous().view({-1});
  }
  Tensor Own(const char* name) const {
    const int64_t own = plan_.boundary_tokens();
    return whole_.at(name).view({kRows, kHidden}).narrow(0, plan_.sequence_parallel ? tp_.rank() * own : 0, own);
  }
  UnitArgs Args() const {
    UnitArgs args;
    args.micro_batch_size = kMicro;
    args.sequence_length = kSequence;
    args.weights = weights_;
    args.gradients = gradients_;
    args.workspace = Bytes(WorkspaceBytes(plan_));
    args.tp = &tp_;
    args.sequence_parallel = plan_.sequence_parallel;
    return args;
  }
  // Under sequence parallelism each rank has made a part of them (Op::kTpReduce).
  void SumReplicatedGradients() {
    if (!plan_.sequence_parallel) return;
    for (const Segment& segment : layout_.segments) {
      if (!segment.parameter.split()) tp_.AllReduce(gradients_.narrow(0, segment.begin, segment.count));
    }
    tp_.Wait();
  }

  const Plan plan_;
  const UnitLayout& layout_;
  const std::vector<std::unique_ptr<Unit>> units_;
  TensorParallel& tp_;
  const Tensors& whole_;
  Tensor weights_, gradients_, output_, input_gradient_;
};

class TensorParallelBlock : public ::testing::TestWithParam<std::tuple<Family, int, bool>> {};

TEST_P(TensorParallelBlock, EqualsTheWholeBlockOfPyTorch) {
  const auto [family, tp, sequence_parallel] = GetParam();
  const Tensors whole = ReadFixture(family == Family::kGpt2 ? "gpt2_block.safetensors" : "llama_block.safetensors");
  ASSERT_EQ(whole.size(), family == Family::kGpt2 ? 28u : 22u);
  const Plan plan = PlanOf(family, tp, sequence_parallel);
  for (const bool in_two_parts : {false, true}) {
    const std::string failed = RunThreadRanks(tp, [&](ThreadRank& self) {
      const auto comm = self.MakeCommunicator("tp");
      const TensorLaneTrace no_trace;
      const auto lane = MakeTensorLane(*comm, at::kCPU, no_trace);
      for (const int times : {1, 3}) {
        SplitBlock block(plan, *lane, whole);
        block.Run(in_two_parts, times);
        block.ExpectEqualsWhole(times);
      }
    });
    EXPECT_EQ(failed, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, TensorParallelBlock,
                         ::testing::Combine(::testing::Values(Family::kGpt2, Family::kLlama),
                                            ::testing::Values(2, 3, 6), ::testing::Bool()),
                         [](const auto& split) {
                           return std::string(std::get<0>(split.param) == Family::kGpt2 ? "Gpt2" : "Llama") + "Tp" +
                                  std::to_string(std::get<1>(split.param)) +
                                  (std::get<2>(split.param) ? "Sequence" : "");
                         });

}  // namespace
}  // namespace trireme::test
