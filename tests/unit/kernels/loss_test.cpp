#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

class EmbeddingTest : public KernelTest {};
class LossTest : public KernelTest {};

double Slot(const at::Tensor& state, int slot) { return Exact(state)[slot].item<double>(); }

at::Tensor TokensOn(const at::TensorOptions& options, int64_t micro, int64_t sequence, int64_t vocab) {
  return at::randint(vocab, {micro, sequence + 1}, at::kInt).to(options.device());
}

TEST_P(EmbeddingTest, ForwardAndBackwardEqualIndexing) {
  for (int64_t width : {1, 3, 8, 17, 64}) {
    const int64_t micro = 5, sequence = 6, vocab = 7, positions = 9, tokens = micro * sequence;
    const at::Tensor ids = TokensOn(Options(), micro, sequence, vocab - 1);
    const at::Tensor table = Random({vocab, width}), position_table = Random({positions, width}),
                     x = Empty({tokens, width});
    EmbeddingForward(ids, table, position_table, x);
    const at::Tensor inputs = ids.to(at::kCPU).narrow(1, 0, sequence).reshape({tokens}).to(at::kLong);
    const at::Tensor places = at::arange(sequence).repeat({micro});
    EXPECT_LT(RelativeError(x, Exact(table).index_select(0, inputs) + Exact(position_table).index_select(0, places)),
              Tolerance());

    const at::Tensor dx = Random({tokens, width});
    const at::Tensor want = at::zeros({vocab, width}, at::kDouble).index_add(0, inputs, Exact(dx));
    const at::Tensor want_positions = at::zeros({positions, width}, at::kDouble).index_add(0, places, Exact(dx));
    for (at::ScalarType type : {Type(), Statistics()}) {
      const at::Tensor dtable = Empty({vocab, width}, type), dpositions = Empty({positions, width}, type);
      EmbeddingBackward(dx, ids, dtable, dpositions, false);
      EXPECT_LT(RelativeError(dtable, want), Tolerance());
      EXPECT_LT(RelativeError(dpositions, want_positions), Tolerance());
      EmbeddingBackward(dx, ids, dtable, dpositions, true);
      EXPECT_LT(RelativeError(dtable, 2 * want), Tolerance());
      EXPECT_LT(RelativeError(dpositions, 2 * want_positions), Tolerance());
    }
  }
}

TEST_P(EmbeddingTest, WithoutPositions) {
  const at::Tensor ids = TokensOn(Options(), 3, 5, 6), table = Random({7, 9}), x = Empty({15, 9}), dx = Random({15, 9});
  ids[1][2] = 7;  // outside: a zero vector
  EmbeddingForward(ids, table, {}, x);
  const at::Tensor inputs = ids.to(at::kCPU).narrow(1, 0, 5).reshape({15}).to(at::kLong);
  const at::Tensor padded = at::cat({Exact(table), at::zeros({1, 9}, at::kDouble)});
  EXPECT_TRUE(at::equal(Exact(x), padded.index_select(0, inputs)));
  const at::Tensor dtable = Empty({7, 9}, Statistics());
  EmbeddingBackward(dx, ids, dtable, {}, false);
  EmbeddingBackward(dx, ids, dtable, {}, true);
  const at::Tensor want = at::zeros({8, 9}, at::kDouble).index_add(0, inputs, 2 * Exact(dx)).narrow(0, 0, 7);
  EXPECT_LT(RelativeError(dtable, want), StatisticsTolerance());
}

TEST_P(EmbeddingTest, RepeatsBitwise) {
  const at::Tensor ids = TokensOn(Options(), 8, 100, 5), dx = Random({800, 24});
  const at::Tensor first = Empty({5, 24}, Statistics()), second = Empty({5, 24}, Statistics()),
                   positions = Empty({100, 24}, Statistics());
  EmbeddingBackward(dx, ids, first, positions, false);
  for (int i = 0; i < 5; ++i) {
    EmbeddingBackward(dx, ids, second, positions, false);
    ASSERT_TRUE(BitwiseEqual(first, second));
  }
}

TEST_P(EmbeddingTest, AnIdOutsideTheTableIsAZeroVector) {
  const at::Tensor ids = at::tensor({0, -1, 9, 1, 0}, at::kInt).view({1, 5}).to(Options().device());
  const at::Tensor table = Random({3, 4}), positions = Random({4, 4}), x = Empty({4, 4}), dx = Random({4, 4});
  EmbeddingForward(ids, table, positions, x);
  EXPECT_TRUE(BitwiseEqual(x.narrow(0, 1, 2), positions.narrow(0, 1, 2)));
  const at::Tensor dtable = Empty({3, 4}, Statistics()), dpositions = Empty({4, 4}, Statistics());
  EmbeddingBackward(dx, ids, dtable, dpositions, false);
  EXPECT_LT(RelativeError(dtable.narrow(0, 0, 2), at::stack({Exact(dx)[0], Exact(dx)[3]})), Tolerance());
  EXPECT_EQ(Exact(dtable)[2].abs().max().item<double>(), 0);
}

// Rows in pieces, padded columns, an ignored label.
TEST_P(LossTest, LossAndGradientEqualAutograd) {
  for (int64_t vocab = 2; vocab <= 40; vocab += 3) {
    const int64_t micro = 3, sequence = 4, rows = micro * sequence, padded = (vocab + 7) / 8 * 8;
    at::Tensor ids = at::randint(vocab, {micro, sequence + 1}, at::kInt);
    ids[1][2] = -1;  // label of row 5
    const at::Tensor labels = ids.narrow(1, 1, sequence).reshape({rows}).to(at::kLong);
    const at::Tensor logits = Random({rows, padded}) * 4;
    const at::Tensor whole = Exact(logits);
    at::Tensor ref = whole.narrow(1, 0, vocab).clone().requires_grad_();
    const at::Tensor loss = at::cross_entropy_loss(ref, labels, {}, at::Reduction::Sum, -1);
    loss.backward();

    const at::Tensor state = State(), device_ids = ids.to(Options().device()), losses = Empty({5}, Statistics());
    const at::Tensor kept = logits.clone();
    for (int64_t row = 0; row < rows; row += 5) {
      const int64_t count = std::min<int64_t>(5, rows - row);
      CrossEntropyForward(logits.narrow(0, row, count), device_ids, row, vocab, losses.narrow(0, 0, count), state);
      EXPECT_TRUE(BitwiseEqual(logits, kept));
      CrossEntropyForwardBackward(kept.narrow(0, row, count), device_ids, row, vocab, 0.25, losses.narrow(0, 0, count),
                                  state);
      logits.narrow(0, row, count).copy_(kept.narrow(0, row, count));
    }
    EXPECT_NEAR(Slot(state, kLossSum) / loss.item<double>(), 1, Type() == at::kDouble ? 1e-13 : 1e-6);
    EXPECT_EQ(Slot(state, kLossSum), Slot(state, kEvalLossSum));
    EXPECT_EQ(Slot(state, kTokens), 11);
    EXPECT_EQ(Slot(state, kEvalTokens), 11);
    EXPECT_LT(RelativeError(kept.narrow(1, 0, vocab), 0.25 * ref.grad()), Tolerance());
    if (padded > vocab) {
      EXPECT_EQ(Exact(kept.narrow(1, vocab, padded - vocab)).abs().max().item<double>(), 0);
    }
    EXPECT_EQ(Exact(kept)[5].abs().max().item<double>(), 0);
  }
}

TEST_P(LossTest, LargeVocabularyAndExtremeLogits) {
  const int64_t vocab = 50257, padded = 50304;
  const at::Tensor ids = at::tensor({0, 50256, 17}, at::kInt).view({1, 3}).to(Options().device());
  const at::Tensor logits = Random({2, padded});
  logits[1][17] = 1000;
  logits[1][18] = -1000;
  const at::Tensor want = at::cross_entropy_loss(Exact(logits).narrow(1, 0, vocab), at::tensor({50256, 17}, at::kLong),
                                                 {}, at::Reduction::Sum);
  const at::Tensor state = State(), losses = Empty({2}, Statistics());
  CrossEntropyForwardBackward(logits, ids, 0, vocab, 1, losses, state);
  EXPECT_NEAR(Slot(state, kLossSum) / want.item<double>(), 1, Type() == at::kDouble ? 1e-13 : 1e-5);
  EXPECT_TRUE(std::isfinite(Exact(logits).abs().max().item<double>()));
}

TEST_P(LossTest, NUM_07_NotANumberShowsInTheLoss) {
  const at::Tensor ids = at::zeros({1, 3}, at::kInt).to(Options().device());
  const at::Tensor logits = Random({2, 20}), state = State(), losses = Empty({2}, Statistics());
  logits[1][13] = std::nan("");
  CrossEntropyForwardBackward(logits, ids, 0, 20, 1, losses, state);
  EXPECT_TRUE(std::isnan(Slot(state, kLossSum)));
}

TEST_P(LossTest, LargeGradientsOverflowInsteadOfSaturating) {
  const at::Tensor ids = at::zeros({1, 3}, at::kInt).to(Options().device()), logits = Random({2, 20}), state = State();
  CrossEntropyForwardBackward(logits, ids, 0, 20, 1e6, Empty({2}, Statistics()), state);
  EXPECT_EQ(std::isinf(Exact(logits).abs().max().item<double>()), Type() == at::kHalf);
}

TRIREME_INSTANTIATE_KERNEL_TEST(EmbeddingTest);
TRIREME_INSTANTIATE_KERNEL_TEST(LossTest);

}  // namespace
}  // namespace trireme::kernels
