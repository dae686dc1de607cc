#include "parsers/model_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "config_testing.h"
#include "engine/base/error.h"
#include "parsers/cli.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::Contains;

class HuggingFace : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  ModelSpec Read(const std::string& text) {
    std::ofstream(dir_ / "config.json") << text;
    diagnostics_ = {};
    return ReadHuggingFaceConfig(dir_, diagnostics_);
  }
  std::string Keys() const {
    std::string keys;
    for (const Problem& p : diagnostics_.problems()) {
      if (p.severity == Severity::kError) keys += p.id + " " + p.key + ";";
    }
    return keys;
  }
  fs::path dir_;
  Diagnostics diagnostics_;
};

TEST(ModelNamesTest, ShapesAndParameterCounts) {
  struct Want {
    const char* name;
    int64_t layers, hidden, heads;
    double billions;
  };
  const Want wants[] = {{"gpt-125m", 12, 768, 12, 0.125},  {"gpt-350m", 24, 1024, 16, 0.356},
                        {"gpt-760m", 24, 1536, 16, 0.760}, {"gpt-large", 24, 1536, 16, 0.760},
                        {"gpt-1.3b", 24, 2048, 16, 1.316}, {"gpt-2.7b", 32, 2560, 20, 2.652},
                        {"gpt-6.7b", 32, 4096, 32, 6.658}, {"GPT_13b", 40, 5120, 40, 12.853}};
  for (const Want& want : wants) {
    const ModelSpec m = NamedModel(want.name);
    EXPECT_EQ(want.layers, m.num_layers) << want.name;
    EXPECT_EQ(want.hidden, m.hidden_size);
    EXPECT_EQ(want.heads, m.num_attention_heads);
    EXPECT_EQ(4 * want.hidden, m.intermediate_size);
    EXPECT_EQ(50257, m.vocab_size);
    EXPECT_EQ(50304, m.padded_vocab_size);
    EXPECT_EQ(2048, m.max_position_embeddings);
    EXPECT_TRUE(m.tie_word_embeddings);
    EXPECT_NEAR(want.billions, static_cast<double>(NumParameters(m)) / 1e9, 1e-3) << want.name;
  }
  // GPT-2 small, whose size is well known: 124,439,808 with 1024 positions.
  ModelSpec gpt2 = NamedModel("gpt-125m");
  gpt2.max_position_embeddings = 1024;
  EXPECT_EQ(124439808, NumParameters(gpt2));
}

TEST(ModelNamesTest, AnUnknownNameIsSuggestedAndListed) {
  try {
    NamedModel("gpt-13bb");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ("MOD001", error.id());
    EXPECT_EQ(78, ExitCode(error.code()));
    EXPECT_TRUE(Contains(error.fix(), "did you mean gpt-13b?"));
    EXPECT_TRUE(Contains(error.fix(), "gpt-350m"));
  }
}

TEST(ModelNamesTest, PaddingOverTensorParallelRanks) {
  ModelSpec m = NamedModel("gpt-125m");
  PadVocabulary(m, 4);
  EXPECT_EQ(50688, m.padded_vocab_size);
  EXPECT_EQ(0, m.padded_vocab_size % (128 * 4));
}

TEST_F(HuggingFace, ReadsGpt2) {
  const ModelSpec m =
      Read(R"({"model_type":"gpt2","n_layer":2,"n_embd":64,"n_head":4,"n_positions":128,"vocab_size":257,
    "activation_function":"gelu_new","resid_pdrop":0.1,"attn_pdrop":0.0,"layer_norm_epsilon":1e-6,"initializer_range":0.01,
    "tie_word_embeddings":false,"architectures":["GPT2LMHeadModel"],"n_ctx":128,"bos_token_id":0})");
  EXPECT_EQ("", Keys()) << diagnostics_.Render();
  EXPECT_EQ(2, m.num_layers);
  EXPECT_EQ(64, m.hidden_size);
  EXPECT_EQ(4, m.num_key_value_heads);
  EXPECT_EQ(256, m.intermediate_size);
  EXPECT_EQ(128, m.max_position_embeddings);
  EXPECT_EQ(384, m.padded_vocab_size);
  EXPECT_EQ(1e-6, m.layer_norm_epsilon);
  EXPECT_EQ(0.01, m.initializer_range);
  EXPECT_FALSE(m.tie_word_embeddings);
  EXPECT_TRUE(Contains(diagnostics_.Render(), "notice MOD007"));
  EXPECT_TRUE(Contains(diagnostics_.Render(), "resid_pdrop: dropout 0.1 is not taken"));
  EXPECT_FALSE(Contains(diagnostics_.Render(), "attn_pdrop"));
}

TEST_F(HuggingFace, RefusesWhatItCannotBuild) {
  Read(R"({"model_type":"bert"})");
  EXPECT_EQ("MOD005 model_type;", Keys());
  Read(R"({"n_layer":2})");
  EXPECT_EQ("MOD005 model_type;", Keys());
  Read(R"({"model_type":"gpt2","n_layer":2,"n_head":3,"n_embd":64,"n_positions":8,"vocab_size":9})");
  EXPECT_EQ("MOD004 n_embd;", Keys());
  Read(R"({"model_type":"gpt2","n_layer":2,"n_head":4,"n_embd":64,"vocab_size":"9","activation_function":"relu",
    "scale_attn_by_inverse_layer_idx":true})");
  EXPECT_EQ("CFG005 vocab_size;MOD006 n_positions;MOD005 activation_function;MOD005 scale_attn_by_inverse_layer_idx;",
            Keys());
  Read("[1]");
  EXPECT_EQ("MOD008 ;", Keys());
  Read("{\"model_type\": ");
  EXPECT_EQ("CFG002 ;", Keys());
  diagnostics_ = {};
  ReadHuggingFaceConfig("/no/such/folder", diagnostics_);
  EXPECT_EQ("MOD008 ;", Keys());
}

TEST_F(HuggingFace, ResolveModelByEveryRoute) {
  Diagnostics d;
  ModelFlags flags;
  flags.model_name = "gpt-1.3b";
  flags.untie = true;
  flags.vocab_size = 257;
  const ModelSpec named = ResolveModel(flags, "", 2, d);
  EXPECT_EQ(2048, named.hidden_size);
  EXPECT_FALSE(named.tie_word_embeddings);
  EXPECT_EQ(257, named.vocab_size);
  EXPECT_EQ(512, named.padded_vocab_size);
  EXPECT_FALSE(named.bos_token_id) << "50256 is past this vocabulary";
  EXPECT_TRUE(named.eos_token_ids.empty());

  ModelFlags shape;
  shape.num_layers = 3;
  shape.hidden_size = 48;
  shape.num_attention_heads = 4;
  shape.max_position_embeddings = 64;
  const ModelSpec own = ResolveModel(shape, "", 1, d);
  EXPECT_EQ(3, own.num_layers);
  EXPECT_EQ(192, own.intermediate_size);
  EXPECT_EQ(64, own.max_position_embeddings);

  Read(R"({"model_type":"gpt2","n_layer":1,"n_head":4,"n_embd":64,"n_positions":8,"vocab_size":9})");
  EXPECT_EQ(1, ResolveModel({}, dir_.string(), 1, d).num_layers);
  ModelFlags path;
  path.model_name = (dir_ / "config.json").string();
  EXPECT_EQ(1, ResolveModel(path, "", 1, d).num_layers);
  EXPECT_FALSE(d.HasErrors()) << d.Render();
}

TEST(ResolveModelTest, IncompleteOrDoubleDescriptions) {
  const auto id = [](const ModelFlags& flags, const std::string& init_from) {
    Diagnostics d;
    try {
      ResolveModel(flags, init_from, 1, d);
    } catch (const Error& error) {
      return error.id();
    }
    return std::string("none");
  };
  ModelFlags flags;
  EXPECT_EQ("MOD002", id(flags, ""));
  flags.num_layers = 2;
  EXPECT_EQ("MOD002", id(flags, ""));
  flags.hidden_size = 50;
  flags.num_attention_heads = 4;
  EXPECT_EQ("MOD004", id(flags, ""));
  flags.hidden_size = 0;
  EXPECT_EQ("MOD003", id(flags, ""));
  flags.hidden_size = 48;
  flags.model_name = "gpt-125m";
  EXPECT_EQ("MOD003", id(flags, ""));
  ModelFlags named;
  named.model_name = "gpt-125m";
  EXPECT_EQ("MOD003", id(named, "folder"));
}

}  // namespace
}  // namespace trireme
