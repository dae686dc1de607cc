// Frequencies against Hugging Face transformers' (rope/frequencies.txt, made by rope/make_rope.py).
#include "engine/plan/families/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace trireme {
namespace {

using Scaling = RopeSpec::Scaling;

std::map<std::string, RopeFrequencies> Fixture() {
  std::map<std::string, RopeFrequencies> cases;
  std::ifstream in(TRIREME_TEST_DATA "/rope/frequencies.txt");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string name;
    RopeFrequencies frequencies;
    words >> name >> frequencies.factor;
    for (double value = 0; words >> value;) frequencies.inverse.push_back(value);
    cases[name] = frequencies;
  }
  return cases;
}

struct Case {
  RopeSpec spec;
  int64_t head_size = 0, positions = 0, length = 0;
};

std::map<std::string, Case> Cases() {
  std::vector<double> short_factor, long_factor;
  for (int i = 0; i < 16; ++i) {
    short_factor.push_back(1 + 0.01 * i);
    long_factor.push_back(1 + 0.5 * i);
  }
  const RopeSpec long_rope{.scaling = Scaling::kLongRope,
                           .factor = 32,
                           .original_max_position_embeddings = 4096,
                           .short_factor = short_factor,
                           .long_factor = long_factor};
  std::map<std::string, Case> cases{
      {"plain", {{}, 64, 2048, 2048}},
      {"theta", {{.theta = 500000}, 128, 8192, 8192}},
      {"part", {{.rotary_fraction = 0.25}, 80, 2048, 2048}},
      {"linear", {{.scaling = Scaling::kLinear, .factor = 2.5}, 32, 4096, 4096}},
      {"dynamic_short", {{.scaling = Scaling::kDynamic, .factor = 4}, 32, 512, 300}},
      {"dynamic_long", {{.scaling = Scaling::kDynamic, .factor = 4}, 32, 512, 1500}},
      {"yarn",
       {{.theta = 1e6, .scaling = Scaling::kYarn, .factor = 4, .original_max_position_embeddings = 32768},
        128,
        131072,
        131072}},
      {"yarn_betas",
       {{.scaling = Scaling::kYarn,
         .factor = 8,
         .original_max_position_embeddings = 2048,
         .beta_fast = 20,
         .beta_slow = 2,
         .attention_factor = 1.25},
        64,
        16384,
        100}},
      {"yarn_mscale",
       {{.scaling = Scaling::kYarn,
         .factor = 40,
         .original_max_position_embeddings = 4096,
         .mscale = 1.0,
         .mscale_all_dim = 0.8,
         .truncate = false},
        64,
        163840,
        100}},
      {"longrope_short", {long_rope, 32, 131072, 4096}},
      {"longrope_long", {long_rope, 32, 131072, 4097}},
      {"longrope_factor", {long_rope, 64, 131072, 8}},
      {"llama3",
       {{.theta = 500000, .scaling = Scaling::kLlama3, .factor = 8, .original_max_position_embeddings = 8192},
        128,
        131072,
        131072}},
      {"llama3_factors",
       {{.theta = 500000,
         .scaling = Scaling::kLlama3,
         .factor = 32,
         .original_max_position_embeddings = 8192,
         .low_freq_factor = 1.5,
         .high_freq_factor = 6},
        64,
        131072,
        10}}};
  cases["longrope_factor"].spec.rotary_fraction = 0.5;
  cases["longrope_factor"].spec.attention_factor = 1.1;
  return cases;
}

TEST(Rope, FrequenciesAreThoseOfHuggingFace) {
  const std::map<std::string, RopeFrequencies> fixture = Fixture();
  ASSERT_EQ(fixture.size(), Cases().size());
  for (const auto& [name, test] : Cases()) {
    const RopeFrequencies& want = fixture.at(name);
    const RopeFrequencies got = MakeRopeFrequencies(test.spec, test.head_size, test.positions, test.length);
    EXPECT_NEAR(got.factor, want.factor, 1e-12) << name;
    ASSERT_EQ(got.inverse.size(), want.inverse.size()) << name;
    EXPECT_EQ(RotatedPairs(test.spec, test.head_size), static_cast<int64_t>(want.inverse.size())) << name;
    for (size_t i = 0; i < want.inverse.size(); ++i) {
      EXPECT_NEAR(got.inverse[i] / want.inverse[i], 1, 1e-6) << name << " " << i;
    }
  }
}

TEST(Rope, OriginalPositionsAreTheModelsWhereNoneAreGiven) {
  RopeSpec spec{.scaling = Scaling::kLlama3, .factor = 8};
  const RopeFrequencies left_out = MakeRopeFrequencies(spec, 64, 8192, 1);
  spec.original_max_position_embeddings = 8192;
  EXPECT_EQ(MakeRopeFrequencies(spec, 64, 131072, 1), left_out);
}

TEST(Rope, LongestSequencesAndTableBytes) {
  ModelSpec model;
  model.family = Family::kLlama;
  model.hidden_size = 64;
  model.num_attention_heads = 2;
  model.max_position_embeddings = 4096;
  EXPECT_EQ(MaxPositions(model), 4096);
  model.rope.factor = 4;
  EXPECT_EQ(MaxPositions(model), 4096);
  model.rope.scaling = Scaling::kDynamic;
  EXPECT_EQ(MaxPositions(model), 16384);
  model.rope.original_max_position_embeddings = 512;
  EXPECT_EQ(MaxPositions(model), 4096);
  EXPECT_EQ(RopeTableBytes(model, DType::kBFloat16, 100), 2 * 100 * 16 * 4);
  EXPECT_EQ(RopeTableBytes(model, DType::kFloat64, 100), 2 * 100 * 16 * 8);
  model.rope.rotary_fraction = 0.25;
  EXPECT_EQ(RopeTableBytes(model, DType::kFloat32, 100), 2 * 100 * 4 * 4);
  model.family = Family::kGpt2;
  EXPECT_EQ(RopeTableBytes(model, DType::kFloat32, 100), 0);
}

}  // namespace
}  // namespace trireme
