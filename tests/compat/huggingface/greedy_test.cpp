// Greedy tokens with and without the key-value cache: equal to those of Hugging Face transformers (make_fixtures.py,
// which runs all tokens anew for each), in every family and with every scaling of rotary positions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/huggingface.h"
#include "engine/trainer/generator.h"
#include "engine/trainer/sampling.h"
#include "parsers/model_config.h"
#include "tests/compat/huggingface/fixtures.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPrompt = 24;

std::vector<int32_t> GreedyOf(const fs::path& folder) {
  const auto reader = checkpoint::CheckpointReader::Open(folder / "expected.safetensors");
  std::vector<int64_t> ids(static_cast<size_t>(checkpoint::Numel(reader->Require("greedy").shape)));
  reader->ReadFlat("greedy", "model", 0, static_cast<int64_t>(ids.size()), std::as_writable_bytes(std::span(ids)));
  return {ids.begin(), ids.end()};
}

// A folder below another has the other's weights.
ModelFolder Open(const fs::path& folder) {
  if (safetensors::IsSafetensors(folder)) return OpenModelFolder(folder);
  Diagnostics diagnostics;
  ModelFolder below;
  below.model = ReadHuggingFaceConfig(folder, diagnostics);
  diagnostics.ThrowIfErrors();
  below.reader = checkpoint::OpenHuggingFace(folder.parent_path(), below.model);
  below.hugging_face = true;
  return below;
}

std::vector<int32_t> Continue(Generator& generator, std::vector<int32_t> ids, size_t length) {
  std::mt19937_64 random(1);
  while (ids.size() < length) ids.push_back(Sample(generator.Logits(ids), {.temperature = 0}, random));
  return ids;
}

class Greedy : public ::testing::TestWithParam<const char*> {
 protected:
  const fs::path path_ = fs::path(TRIREME_TEST_DATA) / "fixtures" / GetParam();
  const ModelFolder folder_ = Open(path_);
  const std::vector<int32_t> want_ = GreedyOf(path_);
  const std::vector<int32_t> prompt_{want_.begin(), want_.begin() + kPrompt};
};

TEST_P(Greedy, TheTokensOfTransformers) {
  ASSERT_EQ(want_.size(), 64u);
  Generator cached(folder_, {}), anew(folder_, {.kv_cache = false});
  EXPECT_EQ(Continue(cached, prompt_, want_.size()), want_);
  EXPECT_EQ(Continue(anew, prompt_, want_.size()), want_);
}

// Half of the prompt, then the other half, then one by one, and after that another text: the cache answers each.
TEST_P(Greedy, TheCacheKeepsWhatATextBeginsWith) {
  Generator cached(folder_, {}), anew(folder_, {.kv_cache = false});
  for (const size_t length : {12u, 24u, 25u, 40u, 7u, 8u, 24u}) {
    const std::span<const int32_t> text = std::span(want_).first(length);
    const std::vector<float> got = cached.Logits(text), want = anew.Logits(text);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5) << length << " tokens, logit " << i;
  }
}

// 16 tokens are looked at: those that stand in the window, at positions from 0 on.
TEST_P(Greedy, BeyondTheContextTheOldestAreForgotten) {
  GeneratorOptions options{.model = {.sequence_length = 16}};
  Generator cached(folder_, options);
  options.kv_cache = false;
  Generator anew(folder_, options);
  const std::vector<int32_t> ids = Continue(cached, prompt_, 60);
  EXPECT_EQ(Continue(anew, prompt_, 60), ids);
  Generator whole(folder_, {.kv_cache = false});
  for (const int64_t count : {16, 17, 20, 21, 24, 60}) {
    const int64_t begin = cached.WindowBegin(count);
    EXPECT_EQ(begin, count <= 16 ? 0 : (count - 13) / 4 * 4) << count;
    const auto window = std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(count - begin));
    const std::vector<float> got = cached.Logits(std::span(ids).first(static_cast<size_t>(count)));
    const std::vector<float> want = whole.Logits(window);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5) << count << " tokens, logit " << i;
  }
}

TEST_P(Greedy, SixteenBitWeightsGiveNearlyTheSameLogits) {
  const std::vector<float> want = Generator(folder_, {}).Logits(prompt_);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    Generator generator(folder_, {.model = {.dtype = dtype}});
    const std::vector<float> got = generator.Logits(prompt_);
    double worst = 0, largest = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      worst = std::max(worst, std::abs(double{got[i]} - double{want[i]}));
      largest = std::max(largest, std::abs(double{want[i]}));
    }
    EXPECT_GT(worst, 0) << Name(dtype);
    EXPECT_LT(worst, largest * (dtype == DType::kBFloat16 ? 0.05 : 0.006)) << Name(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Greedy, ::testing::ValuesIn(kFixtures),
                         [](const auto& fixture) { return FixtureName(fixture.param); });

}  // namespace
}  // namespace trireme
