// Every family trains in every layout like one rank, in double precision, with dropout too: its masks follow the
// sample, not the rank.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>

#include "tests/ranks/trainer/trains_alike.h"

namespace trireme::test {
namespace {

ModelSpec Tiny(const std::string& name) {
  ModelSpec model;
  model.name = name;
  model.num_layers = 2;
  model.hidden_size = 20;
  model.num_attention_heads = 2;
  model.num_key_value_heads = 2;
  model.intermediate_size = 37;  // matrices that end off every boundary
  model.vocab_size = 61;
  model.padded_vocab_size = 64;
  model.max_position_embeddings = 16;
  model.tie_word_embeddings = false;
  if (name == "gpt2") return model;
  if (name.starts_with("neox")) {
    model.family = Family::kGptNeoX;
    model.activation = Activation::kGelu;
    model.rope.rotary_fraction = 0.25;
    model.parallel_residual = name == "neox_parallel";
    return model;
  }
  model.family = name == "qwen2" ? Family::kQwen2 : Family::kLlama;
  model.activation = Activation::kSilu;
  model.num_attention_heads = 4;
  model.head_size = 6;
  model.qkv_bias = model.tie_word_embeddings = name == "qwen2";
  model.attention_out_bias = model.mlp_bias = false;
  return model;
}

TinyRun RunOf(const std::string& family, double dropout, bool sgd) {
  TinyRun run{.sgd = sgd, .clip = 0};
  run.steps = 5;
  run.model = Tiny(family);
  run.dropout = dropout;
  return run;
}

const Curve& OneRank(const std::string& family, double dropout, bool sgd) {
  static std::map<std::tuple<std::string, double, bool>, Curve> curves;
  const auto key = std::tuple(family, dropout, sgd);
  if (!curves.contains(key)) curves[key] = Train(RunOf(family, dropout, sgd));
  return curves[key];
}

using Layout = std::tuple<std::string, double, int, int, bool>;  // family, dropout, stage, ranks, SGD

class FamilyEquality : public ::testing::TestWithParam<Layout> {};

TEST_P(FamilyEquality, EqualsOneRankInFp64) {
  const auto [family, dropout, stage, world, sgd] = GetParam();
  TinyRun run = RunOf(family, dropout, sgd);
  run.zero_stage = stage;
  run.world = world;
  run.accumulation = 3;
  ExpectTrainsAlike(Train(run), OneRank(family, dropout, sgd));
}

INSTANTIATE_TEST_SUITE_P(Layouts, FamilyEquality,
                         ::testing::Combine(::testing::Values("gpt2", "llama", "qwen2", "neox_parallel", "neox_serial"),
                                            ::testing::Values(0.0, 0.1), ::testing::Values(0, 1, 2, 3),
                                            ::testing::Values(2, 3), ::testing::Bool()),
                         [](const auto& layout) {
                           return std::get<0>(layout.param) + (std::get<1>(layout.param) > 0 ? "_dropout" : "") +
                                  "_zero" + std::to_string(std::get<2>(layout.param)) + "_ranks" +
                                  std::to_string(std::get<3>(layout.param)) +
                                  (std::get<4>(layout.param) ? "_sgd" : "_adamw");
                         });

TEST(FamilyEquality, DropoutChangesTheCurve) {
  const Curve &with = OneRank("llama", 0.1, true), &without = OneRank("llama", 0, true);
  ASSERT_EQ(with.failed, "");
  EXPECT_GT(RelativeDifference(with.losses, without.losses), 1e-4);
}

TEST(FamilyEquality, RecomputationIsBitwise) {
  for (const char* family : {"gpt2", "llama", "qwen2", "neox_parallel", "neox_serial"}) {
    for (const double dropout : {0.0, 0.1}) {
      TinyRun kept = RunOf(family, dropout, true);
      kept.world = 2;
      kept.zero_stage = 3;
      kept.accumulation = 3;
      TinyRun recomputed = kept;
      recomputed.recompute = Recompute::kFull;
      const Curve want = Train(kept), got = Train(recomputed);
      ASSERT_EQ(got.failed, "");
      EXPECT_EQ(got.losses, want.losses) << family;
      EXPECT_EQ(got.weights, want.weights) << family;
    }
  }
}

}  // namespace
}  // namespace trireme::test
