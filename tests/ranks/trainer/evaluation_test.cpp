// The loss of a saved model, without a trainer: the trainer's own, the one that its logits give by hand, and the same
// however many ranks share the work.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "engine/data/tokenizer.h"
#include "engine/trainer/evaluator.h"
#include "engine/trainer/generator.h"
#include "tests/ranks/trainer/tiny_run.h"
#include "tests/support/run_threads.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSequence = 11;

// 79 ids: 7 whole samples of 11, and a label in an eighth.
std::vector<int32_t> Ids() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 79; ++i) ids.push_back((i * i * 7 + i * 3 + 5) % 61);
  return ids;
}

class Evaluating : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("trireme_evaluation_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    TinyRun run;
    run.steps = 3;
    trainer_ = Make(run);
    run.save = folder_.string();
    std::vector<double> losses, norms;
    TrainRank(run, *trainer_, losses, norms);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::unique_ptr<Trainer> Make(const TinyRun& run) {
    RankWorld world;
    auto comms = MakeInProcessWorld(1, std::chrono::seconds(60));
    const std::string failed =
        RunThreadRanks(comms, [&](ThreadRank& self) { world.world = self.MakeCommunicator("world"); });
    EXPECT_EQ(failed, "");
    return std::make_unique<Trainer>(SetupOf(run), std::move(world));
  }

  static LossSums Sums(const ModelFolder& folder, DType dtype, int64_t micro, int rank, int world) {
    InferenceModel model(folder, {.dtype = dtype, .sequence_length = kSequence, .micro_batch_size = micro});
    const auto source = SamplesOf(Ids(), kSequence);
    return SumLosses(model, *source, {.count = source->num_samples(), .rank = rank, .world = world});
  }

  fs::path folder_;
  std::unique_ptr<Trainer> trainer_;
};

TEST_F(Evaluating, EqualsTheTrainersEvaluation) {
  const Evaluation want = trainer_->Evaluate(SamplesOf(Ids(), kSequence), 0);
  const LossSums got = Sums(OpenModelFolder(folder_), DType::kFloat64, 3, 0, 1);
  EXPECT_EQ(got.tokens, 78);
  EXPECT_EQ(want.tokens, 78);
  EXPECT_NEAR(got.loss(), want.loss, 1e-12);
  EXPECT_NEAR(got.perplexity(), std::exp(want.loss), 1e-9);
}

TEST_F(Evaluating, EqualsTheSumByHandOfWhatGenerationSees) {
  const ModelFolder folder = OpenModelFolder(folder_);
  Generator generator(folder, {.model = {.sequence_length = kSequence}});
  const std::vector<int32_t> ids = Ids();
  double nats = 0;
  for (size_t begin = 0; begin + 1 < ids.size(); begin += kSequence) {
    for (size_t length = 1; length <= kSequence && begin + length < ids.size(); ++length) {
      const std::vector<float> logits = generator.Logits(std::span(ids).subspan(begin, length));
      double total = 0;
      for (const float logit : logits) total += std::exp(double{logit});
      nats += std::log(total) - double{logits[static_cast<size_t>(ids[begin + length])]};
    }
  }
  const LossSums got = Sums(folder, DType::kFloat32, 3, 0, 1);
  EXPECT_NEAR(got.nats, nats, 1e-5 * nats);
  EXPECT_NEAR(Sums(folder, DType::kBFloat16, 3, 0, 1).nats, nats, 0.02 * nats);
}

TEST_F(Evaluating, RanksShareTheMicroBatches) {
  const ModelFolder folder = OpenModelFolder(folder_);
  const LossSums whole = Sums(folder, DType::kFloat64, 1, 0, 1);
  for (const int world : {2, 3, 9}) {
    double nats = 0;
    int64_t tokens = 0;
    for (int rank = 0; rank < world; ++rank) {
      const LossSums mine = Sums(folder, DType::kFloat64, 2, rank, world);
      nats += mine.nats;
      tokens += mine.tokens;
    }
    EXPECT_EQ(tokens, whole.tokens) << world;
    EXPECT_NEAR(nats, whole.nats, 1e-10) << world;
  }
}

// Two bytes a letter of this tokeniser's text: é is two ids of one byte each; the end of a document has none.
TEST_F(Evaluating, BitsPerByteCountTheTextAlone) {
  const auto tokenizer = data::MakeTokenizer("byte");
  TokenBytes bytes(*tokenizer);
  EXPECT_EQ(bytes.Of(0xC3), 1);
  EXPECT_EQ(bytes.Of('a'), 1);
  EXPECT_EQ(bytes.Of(tokenizer->eod_id()), 0);
  EXPECT_EQ(bytes.Of(300), 0);  // a row that only pads the vocabulary
  const LossSums sums{.nats = 6 * std::log(2.0), .tokens = 3, .bytes = 4};
  EXPECT_DOUBLE_EQ(sums.bits_per_byte(), 1.5);
  EXPECT_DOUBLE_EQ(sums.loss(), 2 * std::log(2.0));
  EXPECT_DOUBLE_EQ(sums.perplexity(), 4);

  const ModelFolder folder = OpenModelFolder(folder_);
  InferenceModel model(folder, {.sequence_length = kSequence, .micro_batch_size = 4});
  const auto source = SamplesOf(Ids(), kSequence);
  EXPECT_EQ(SumLosses(model, *source, {.count = 8, .bytes = &bytes}).bytes, 78);
  EXPECT_EQ(SumLosses(model, *source, {.count = 3, .bytes = &bytes}).bytes, 33);
}

TEST_F(Evaluating, SamplesHoldEveryIdButTheFirstAsALabelOnce) {
  const std::vector<int32_t> ids = Ids();
  const auto source = SamplesOf(ids, kSequence);
  ASSERT_EQ(source->num_samples(), 8);
  std::vector<int32_t> tokens(8 * (kSequence + 1)), labels;
  source->Fill(0, 8, tokens);
  for (size_t row = 0; row < 8; ++row) {
    for (size_t i = 1; i <= kSequence; ++i) {
      const int32_t label = tokens[row * (kSequence + 1) + i];
      if (label < 0) continue;
      labels.push_back(label);
      EXPECT_EQ(tokens[row * (kSequence + 1) + i - 1], ids[labels.size() - 1]);
    }
  }
  EXPECT_EQ(labels, std::vector<int32_t>(ids.begin() + 1, ids.end()));
  EXPECT_EQ(SamplesOf({5}, 4)->num_samples(), 0);
}

}  // namespace
}  // namespace trireme::test
