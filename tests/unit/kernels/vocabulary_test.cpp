// Cross entropy over parts of the vocabulary, joined as the head joins them over ranks, against ATen's over the whole.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

double Slot(const at::Tensor& state, int slot) { return Exact(state)[slot].item<double>(); }

class VocabularyTest : public KernelTest {
 protected:
  struct Whole {
    at::Tensor loss, gradient;  // of the tokens' columns
  };
  // labels: long, negative ones ignored.
  static Whole Reference(const at::Tensor& logits, const at::Tensor& labels, int64_t vocab) {
    at::Tensor ref = Exact(logits).narrow(1, 0, vocab).clone().requires_grad_();
    const at::Tensor loss = at::cross_entropy_loss(ref, labels, {}, at::Reduction::Sum, -1);
    loss.backward();
    return {loss.detach(), ref.grad()};
  }

  // Logits [rows, parts * held] cut into parts; what remains in them, side by side. The last part counts.
  at::Tensor Joined(const at::Tensor& logits, const at::Tensor& ids, int64_t parts, int64_t vocab, bool train,
                    const at::Tensor& state, int64_t chunk, double scale = 1) {
    const int64_t rows = logits.size(0), held = logits.size(1) / parts;
    std::vector<at::Tensor> columns;
    for (int64_t p = 0; p < parts; ++p) columns.push_back(logits.narrow(1, p * held, held).contiguous());
    for (int64_t row = 0; row < rows; row += chunk) {
      const int64_t count = std::min(chunk, rows - row);
      std::vector<at::Tensor> maxima, sums;
      for (int64_t p = 0; p < parts; ++p) {
        maxima.push_back(Empty({count}, Statistics()));
        sums.push_back(Empty({2, count}, Statistics()));
        VocabularyStatistics(columns[static_cast<size_t>(p)].narrow(0, row, count), ids, row, PartOf(p, held, vocab),
                             maxima.back(), sums.back());
      }
      const at::Tensor highest = at::stack(maxima).amax(0), sum = at::zeros_like(sums[0]);
      for (size_t p = 0; p < maxima.size(); ++p) {
        sums[p].select(0, 0).mul_((maxima[p] - highest).exp());
        sum.add_(sums[p]);
      }
      for (int64_t p = 0; p < parts; ++p) {
        VocabularyPart part = PartOf(p, held, vocab);
        part.counts = p + 1 == parts;
        VocabularyLoss(columns[static_cast<size_t>(p)].narrow(0, row, count), ids, row, part, highest, sum, scale,
                       state, train);
      }
    }
    return at::cat(columns, 1);
  }

  static VocabularyPart PartOf(int64_t p, int64_t held, int64_t vocab) { return {p * held, vocab, true}; }
};

// Padding inside a part, parts of padding alone, ignored labels, rows in pieces.
TEST_P(VocabularyTest, PartsJoinToTheLossOfTheWhole) {
  for (const int64_t parts : {1, 2, 3, 5}) {
    for (const int64_t vocab : {2, 9, 16, 23, 40}) {
      const int64_t micro = 3, sequence = 4, rows = micro * sequence, held = (vocab / parts + 8) / 8 * 8;
      at::Tensor ids = at::randint(vocab, {micro, sequence + 1}, at::kInt);
      ids[1][2] = -1;  // label of row 5
      const at::Tensor labels = ids.narrow(1, 1, sequence).reshape({rows}).to(at::kLong);
      const at::Tensor logits = Random({rows, parts * held}) * 4, state = State();
      const Whole want = Reference(logits, labels, vocab);
      ids = ids.to(Options().device());

      const at::Tensor kept = Joined(logits, ids, parts, vocab, /*train=*/false, state, 5);
      EXPECT_TRUE(BitwiseEqual(kept, logits));
      const at::Tensor gradient = Joined(logits, ids, parts, vocab, /*train=*/true, state, 5, 0.25);
      EXPECT_NEAR(Slot(state, kLossSum) / want.loss.item<double>(), 1, Type() == at::kDouble ? 1e-13 : 1e-6);
      EXPECT_EQ(Slot(state, kLossSum), Slot(state, kEvalLossSum));
      EXPECT_EQ(Slot(state, kTokens), 11);
      EXPECT_EQ(Slot(state, kEvalTokens), 11);
      EXPECT_LT(RelativeError(gradient.narrow(1, 0, vocab), 0.25 * want.gradient), Tolerance())
          << parts << " " << vocab;
      EXPECT_EQ(Exact(gradient)[5].abs().max().item<double>(), 0);
      if (parts * held > vocab) {
        EXPECT_EQ(Exact(gradient.narrow(1, vocab, parts * held - vocab)).abs().max().item<double>(), 0);
      }
    }
  }
}

// The largest logit of a row lies in another part than the label; exponentials would overflow or vanish if a part's own
// maximum were taken for that of all.
TEST_P(VocabularyTest, ExtremeLogits) {
  const int64_t parts = 3, held = 16, vocab = 43;
  at::Tensor ids = at::tensor({0, 2, 40, 17, 20}, at::kInt).view({1, 5});
  const at::Tensor labels = ids.narrow(1, 1, 4).reshape({4}).to(at::kLong);
  const at::Tensor logits = Random({4, parts * held}), state = State();
  logits[0][2] = 1000;
  logits[1][3] = 1000;
  logits[1][40] = 990;
  logits[2].fill_(-1000);
  logits[3].narrow(0, 0, 16).fill_(-30000);
  logits.narrow(1, vocab, parts * held - vocab).fill_(30000);  // padding, which is not looked at
  const Whole want = Reference(logits, labels, vocab);
  const at::Tensor gradient = Joined(logits, ids.to(Options().device()), parts, vocab, true, state, 4);
  EXPECT_NEAR(Slot(state, kLossSum) / want.loss.item<double>(), 1, Type() == at::kDouble ? 1e-13 : 1e-5);
  EXPECT_LT(RelativeError(gradient.narrow(1, 0, vocab), want.gradient), Tolerance());
}

TEST_P(VocabularyTest, TakesTheLossScaleOfTheStepState) {
  const at::Tensor ids = at::tensor({0, 3, 9}, at::kInt).view({1, 3}).to(Options().device()), logits = Random({2, 16});
  const at::Tensor one = State(), eight = State();
  eight[kLossScale] = 8;
  const at::Tensor plain = Joined(logits, ids, 2, 12, true, one, 2),
                   scaled = Joined(logits, ids, 2, 12, true, eight, 2);
  EXPECT_LT(RelativeError(scaled, 8 * Exact(plain)), Tolerance());
  EXPECT_EQ(Slot(one, kLossSum), Slot(eight, kLossSum));
}

// Wherever it stands, and whichever part counts.
TEST_P(VocabularyTest, NUM_07_NotANumberShowsInTheLoss) {
  for (const int64_t column : {1, 7, 13}) {
    const at::Tensor ids = at::tensor({0, 3, 9}, at::kInt).view({1, 3}).to(Options().device());
    const at::Tensor logits = Random({2, 16}), state = State();
    logits[1][column] = std::nan("");
    Joined(logits, ids, 2, 16, true, state, 2);
    EXPECT_TRUE(std::isnan(Slot(state, kLossSum))) << column;
  }
}

// A label past the vocabulary is no ignored one.
TEST_P(VocabularyTest, ALabelInThePaddingShowsInTheLoss) {
  const at::Tensor ids = at::tensor({0, 13}, at::kInt).view({1, 2}).to(Options().device()), state = State();
  Joined(Random({1, 16}), ids, 2, 12, true, state, 1);
  EXPECT_TRUE(std::isnan(Slot(state, kLossSum)));
}

TRIREME_INSTANTIATE_KERNEL_TEST(VocabularyTest);

}  // namespace
}  // namespace trireme::kernels
