// Units of GPT-2 against Hugging Face's names and shapes, and against published counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "engine/plan/unit_spec.h"
#include "parsers/model_config.h"

namespace trireme {
namespace {

const ParameterSpec& Find(const std::vector<UnitSpec>& units, const std::string& name) {
  for (const UnitSpec& unit : units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.name == name) return parameter;
    }
  }
  ADD_FAILURE() << "no parameter " << name;
  static const ParameterSpec kNone;
  return kNone;
}

using Shape = std::vector<int64_t>;

TEST(Gpt2, UnitsAreEmbeddingBlocksHead) {
  const std::vector<UnitSpec> units = MakeUnitSpecs(NamedModel("gpt-125m"), {DType::kBFloat16, 1024, 0, false});
  ASSERT_EQ(units.size(), 14u);
  EXPECT_EQ(units.front().kind, UnitKind::kEmbedding);
  EXPECT_EQ(units[1].name, "transformer.h.0");
  EXPECT_EQ(units[12].layer, 11);
  EXPECT_EQ(units.back().kind, UnitKind::kHead);
  EXPECT_TRUE(units.back().reads_tied_embedding);
}

TEST(Gpt2, NamesAndShapesAreThoseOfHuggingFace) {
  ModelSpec model = NamedModel("gpt-125m");
  model.tie_word_embeddings = false;
  const std::vector<UnitSpec> units = MakeUnitSpecs(model, {DType::kBFloat16, 1024, 0, false});
  EXPECT_EQ(Find(units, "transformer.wte.weight").shape, (Shape{50257, 768}));
  EXPECT_EQ(Find(units, "transformer.wte.weight").HeldShape(), (Shape{50304, 768}));
  EXPECT_EQ(Find(units, "transformer.wpe.weight").HeldShape(), (Shape{2048, 768}));
  EXPECT_EQ(Find(units, "transformer.h.3.attn.c_attn.weight").shape, (Shape{768, 2304}));
  EXPECT_EQ(Find(units, "transformer.h.3.attn.c_attn.weight").HeldShape(), (Shape{2304, 768}));
  EXPECT_EQ(Find(units, "transformer.h.3.mlp.c_fc.weight").HeldShape(), (Shape{3072, 768}));
  EXPECT_EQ(Find(units, "transformer.h.3.mlp.c_proj.weight").HeldShape(), (Shape{768, 3072}));
  EXPECT_EQ(Find(units, "transformer.h.3.mlp.c_fc.bias").shape, (Shape{3072}));
  EXPECT_EQ(Find(units, "lm_head.weight").HeldShape(), (Shape{50304, 768}));
  EXPECT_EQ(Find(units, "transformer.ln_f.bias").shape, (Shape{768}));
  std::set<std::string> names;
  size_t count = 0;
  for (const UnitSpec& unit : units) {
    for (const ParameterSpec& parameter : unit.parameters) names.insert(parameter.name), ++count;
  }
  EXPECT_EQ(names.size(), count);
  EXPECT_EQ(count, 2 + 12 * 12 + 3u);
}

TEST(Gpt2, DecayAndInitialValues) {
  const ModelSpec model = NamedModel("gpt-125m");
  for (const bool all : {false, true}) {
    for (const UnitSpec& unit : MakeUnitSpecs(model, {DType::kFloat32, 1024, 0, all})) {
      for (const ParameterSpec& parameter : unit.parameters) {
        const bool matrix = parameter.shape.size() == 2;
        EXPECT_EQ(parameter.decay, matrix || all) << parameter.name;
        EXPECT_EQ(parameter.init == Init::kNormal, matrix) << parameter.name;
        const bool norm_weight = parameter.name.find(".ln_") != std::string::npos && parameter.name.ends_with("weight");
        EXPECT_EQ(parameter.init == Init::kOnes, norm_weight) << parameter.name;
        if (matrix) {
          EXPECT_DOUBLE_EQ(parameter.init_std,
                           parameter.name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(24.0) : 0.02);
        }
      }
    }
  }
}

TEST(Gpt2, SavedActivationsTake14HiddenVectorsAToken) {
  const UnitSpec block = MakeUnitSpecs(NamedModel("gpt-1.3b"), {DType::kBFloat16, 2048, 0, false})[1];
  std::vector<std::string> names;
  int64_t arena = 0, pool = 0, statistics = 0;
  for (const SavedSpec& saved : block.saved) {
    names.push_back(saved.name);
    int64_t& sum = saved.place == SavedSpec::Place::kPool ? pool : saved.compute_dtype ? arena : statistics;
    sum += saved.elements_per_token;
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"norm_1.mean", "norm_1.rstd", "norm_1.out", "attn.qkv", "attn.out", "attn.lse",
                                      "mid", "norm_2.mean", "norm_2.rstd", "norm_2.out", "mlp.fc", "mlp.act"}));
  EXPECT_EQ(arena, 14 * 2048);
  EXPECT_EQ(statistics, 4);
  EXPECT_EQ(pool, 2048 + 16);
}

// 8.47 GFLOP a token in forward and backward with causal attention, 79.6 for 13B: Megatron-LM's and llm.c's count.
TEST(Gpt2, OperationsAreThePublishedCounts) {
  const auto gflop = [](const char* name) {
    double forward = 0;
    for (const UnitSpec& unit : MakeUnitSpecs(NamedModel(name), {DType::kBFloat16, 2048, 0, false})) {
      forward += unit.forward_flops_per_token;
    }
    return 3 * forward / 1e9;
  };
  EXPECT_NEAR(gflop("gpt-1.3b"), 8.47, 0.01);
  EXPECT_NEAR(gflop("gpt-6.7b"), 41.5, 0.05);
  EXPECT_NEAR(gflop("gpt-13b"), 79.6, 0.1);
}

TEST(Gpt2, HeadChunks) {
  EXPECT_EQ(HeadChunkTokens(1000, 384), 1000);
  EXPECT_EQ(HeadChunkTokens(1 << 20, 50304), 1280);
  EXPECT_EQ(HeadChunkTokens(1 << 20, 1 << 20), 128);
  for (const int64_t vocab : {128, 50304, 128256, 256000}) {
    const int64_t rows = HeadChunkTokens(1 << 24, vocab);
    EXPECT_EQ(rows % 128, 0);
    EXPECT_LE(rows * vocab * 4, int64_t{256} << 20);
  }
}

}  // namespace
}  // namespace trireme
