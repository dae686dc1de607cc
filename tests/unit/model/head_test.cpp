// The head's pieces, padded rows of the vocabulary, and workspaces.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"
#include "engine/model/flat_view.h"
#include "tests/unit/model/runner.h"

namespace trireme {
namespace {

using at::Tensor;
using testing::kTokenCount;
using testing::Runner;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

ModelSpec SmallGpt(bool tied) {
  return {.name = "test",
          .num_layers = 2,
          .hidden_size = 24,
          .num_attention_heads = 3,
          .num_key_value_heads = 3,
          .intermediate_size = 96,
          .vocab_size = 61,
          .padded_vocab_size = 64,
          .max_position_embeddings = 9,
          .tie_word_embeddings = tied};
}

TEST(HeadTest, PaddedRowsOfTheVocabularyHaveNoGradient) {
  for (const bool tied : {false, true}) {
    Runner run(testing::PlanOf(SmallGpt(tied), DType::kFloat32));
    run.Run(false);
    const Tensor gradient = run.Logical(run.gradients_)[tied ? "transformer.wte.weight" : "lm_head.weight"];
    EXPECT_EQ(gradient.narrow(0, 61, 3).abs().max().item<double>(), 0);
  }
}

// Logits in pieces of a few rows, as in a micro-batch whose logits exceed one chunk: the same loss and gradients as in
// one piece.
class HeadChunksTest : public ::testing::TestWithParam<DType> {};

TEST_P(HeadChunksTest, ChunksEqualOnePiece) {
  const DType compute = GetParam();
  const Plan plan = testing::PlanOf(SmallGpt(true), compute);
  const int64_t h = plan.model.hidden_size;
  auto run = [&](int64_t chunk_rows) {
    Runner runner(plan);
    UnitArgs args = runner.Args(3);
    args.input = at::randn({kTokenCount, h}, at::kDouble).to(runner.Compute());
    args.tied_weights = runner.weights_[0];
    args.tied_gradients = runner.gradients_[0];
    args.input_gradient = runner.Activations();
    args.add_gradients = args.add_tied_gradients = false;
    // normed, dnormed, mean, rstd, losses; then logits
    const int64_t c = SizeOf(compute), statistics = compute == DType::kFloat64 ? 8 : 4;
    int64_t bytes = 2 * RoundUp(kTokenCount * h * c, 256) + 3 * RoundUp(kTokenCount * statistics, 256);
    bytes += chunk_rows * 64 * c + (c == 2 ? h * c + 256 : 0);
    args.workspace = at::empty({bytes}, at::kByte);
    MakeUnits(plan).back()->Forward(args);
    return args;
  };
  const UnitArgs whole = run(kTokenCount);
  for (int64_t rows : {1, 4, 20}) {
    const UnitArgs chunked = run(rows);
    const double tolerance = compute == DType::kFloat64 ? 1e-13 : (compute == DType::kFloat32 ? 1e-5 : 2e-2);
    EXPECT_NEAR(chunked.step_state[kLossSum].item<double>() / whole.step_state[kLossSum].item<double>(), 1, tolerance);
    auto error = [](const Tensor& got, const Tensor& want) {
      return ((got - want).abs().max() / want.abs().max()).item<double>();
    };
    EXPECT_LT(error(chunked.input_gradient, whole.input_gradient), tolerance);
    EXPECT_LT(error(chunked.gradients.narrow(0, 0, h), whole.gradients.narrow(0, 0, h)), tolerance);
    EXPECT_LT(error(chunked.tied_gradients.narrow(0, 0, 64 * h), whole.tied_gradients.narrow(0, 0, 64 * h)), tolerance);
    const Segment& positions = plan.units.front().segments[1];
    EXPECT_EQ(chunked.tied_gradients.narrow(0, positions.begin, positions.count).abs().max().item<double>(), 0);
  }
  EXPECT_THROW(run(0), Error);
}
INSTANTIATE_TEST_SUITE_P(Types, HeadChunksTest, ::testing::Values(DType::kFloat64, DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(Name(test.param)); });

TEST(WorkspaceTest, PartsAreAlignedAndBounded) {
  const Tensor bytes = at::empty({1024}, at::kByte);
  Workspace workspace(bytes);
  const Tensor a = workspace.Take(at::kFloat, {3}), b = workspace.Take(at::kDouble, {2, 2});
  EXPECT_EQ(static_cast<char*>(b.data_ptr()) - static_cast<char*>(a.data_ptr()), 256);
  EXPECT_EQ(workspace.Rest().numel(), 512);
  EXPECT_THROW(workspace.Take(at::kFloat, {129}), Error);
  EXPECT_THROW(ViewOf(bytes, 2, at::kFloat, {1}), Error);
}

}  // namespace
}  // namespace trireme
