// A Hugging Face folder in, and out again, at every ZeRO stage and number of ranks: the same bytes; and after training
// steps the file of 16-bit weights is the rounded file of the masters.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/convert.h"
#include "checkpoint/huggingface.h"
#include "engine/base/file.h"
#include "engine/trainer/trainer.h"
#include "parsers/model_config.h"
#include "tests/ranks/trainer/tiny_run.h"
#include "tests/support/run_threads.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointReader;

std::vector<std::byte> Bytes(const CheckpointReader& reader, const std::string& name) {
  const checkpoint::TensorInfo& info = reader.Require(name);
  std::vector<std::byte> bytes(static_cast<size_t>(checkpoint::Numel(info.shape) * SizeOf(info.dtype)));
  reader.ReadFlat(name, "model", 0, checkpoint::Numel(info.shape), bytes);
  return bytes;
}

// Every tensor of `got` is that of `want` in got's type.
void ExpectRounded(const fs::path& want_folder, const fs::path& got_folder, DType dtype, const ModelSpec& model) {
  const auto want = checkpoint::OpenHuggingFace(want_folder, model),
             got = checkpoint::OpenHuggingFace(got_folder, model);
  for (const checkpoint::TensorInfo& tensor : want->tensors()) {
    const std::vector<std::byte> source = Bytes(*want, tensor.name);
    std::vector<std::byte> rounded(source.size() / static_cast<size_t>(SizeOf(tensor.dtype)) *
                                   static_cast<size_t>(SizeOf(dtype)));
    checkpoint::ConvertElements(tensor.dtype, dtype, source, rounded);
    EXPECT_EQ(dtype, got->Require(tensor.name).dtype);
    EXPECT_TRUE(rounded == Bytes(*got, tensor.name)) << tensor.name;
  }
}

struct Case {
  const char* fixture;
  int stage, ranks;
  bool bf16;
};

class HuggingFaceLayouts : public ::testing::TestWithParam<Case> {};

TEST_P(HuggingFaceLayouts, InAndOut) {
  const Case c = GetParam();
  const fs::path in = fs::path(TRIREME_TEST_DATA) / "fixtures" / c.fixture,
                 out = fs::path(::testing::TempDir()) /
                       (std::string("layouts_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::string tag = out.string();
  std::ranges::replace(tag.begin() + static_cast<std::ptrdiff_t>(tag.rfind("layouts_")), tag.end(), '/', '_');
  const fs::path root = tag;
  fs::remove_all(root);
  Diagnostics diagnostics;
  test::TinyRun run;
  run.world = c.ranks;
  run.zero_stage = c.stage;
  run.fp64 = false;
  run.bf16 = c.bf16;
  TrainerSetup setup = test::SetupOf(run);
  setup.model = ReadHuggingFaceConfig(in, diagnostics);
  ASSERT_FALSE(diagnostics.HasErrors()) << diagnostics.Render();
  const DType compute = c.bf16 ? DType::kBFloat16 : DType::kFloat32;
  const std::string failed = test::RunThreadRanks(c.ranks, [&](test::ThreadRank& self) {
    RankWorld world;
    world.rank = self.rank;
    world.world_size = self.world;
    world.world = self.MakeCommunicator("world");
    world.make_group = self.GroupMaker();
    Trainer trainer(setup, std::move(world));
    trainer.LoadHuggingFace(in);
    trainer.SaveHuggingFace(root / "start", std::nullopt, {{"tokenizer.json", "{}"}});
    for (int step = 0; step < 2; ++step) {
      trainer.StartStep(test::SyntheticFill(trainer));
      trainer.FinishStep();
    }
    trainer.SaveHuggingFace(root / "compute", std::nullopt, {});
    trainer.SaveHuggingFace(root / "fp32", DType::kFloat32, {});
    EXPECT_THROW(trainer.SaveHuggingFace(root / "fp32", std::nullopt, {}), Error) << "it is there already";
  });
  ASSERT_EQ("", failed);
  ExpectRounded(in, root / "start", compute, setup.model);
  EXPECT_EQ("{}", ReadFile(root / "start" / "tokenizer.json", ErrorCode::kCheckpoint));
  ExpectRounded(root / "fp32", root / "compute", compute, setup.model);
  const auto before = checkpoint::OpenHuggingFace(in, setup.model),
             after = checkpoint::OpenHuggingFace(root / "fp32", setup.model);
  EXPECT_FALSE(Bytes(*before, before->tensors()[0].name) == Bytes(*after, before->tensors()[0].name)) << "it trained";
  fs::remove_all(root);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* fixture : {"gpt2", "llama", "qwen2", "gpt_neox"}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int ranks : {1, 2, 3}) cases.push_back({fixture, stage, ranks, (stage + ranks) % 2 == 0});
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Stages, HuggingFaceLayouts, ::testing::ValuesIn(Cases()), [](const auto& layout) {
  const Case& c = layout.param;
  return std::string(c.fixture) + "_zero" + std::to_string(c.stage) + "_ranks" + std::to_string(c.ranks) +
         (c.bf16 ? "_bf16" : "_fp32");
});

}  // namespace
}  // namespace trireme
