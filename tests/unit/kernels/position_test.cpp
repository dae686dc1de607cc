// Rotary positions and dropout.
#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

class RotateTest : public KernelTest {
 protected:
  static at::Tensor Angles(int64_t positions, int64_t half) {
    const at::Tensor frequencies = at::pow(10000.0, at::arange(half, at::kDouble) / -static_cast<double>(half));
    return at::arange(positions, at::kDouble).unsqueeze(1) * frequencies;
  }
  static at::Tensor Table(const at::Tensor& values) { return values.to(Statistics()).to(Options().device()); }
};

// As rotate_half says: turned = x cos + (-second half | first half) sin, on the first 2r channels of queries and keys.
at::Tensor Rotated(const at::Tensor& qkv, const AttentionShape& s, const at::Tensor& cosines, const at::Tensor& sines,
                   int64_t first_position) {
  const int64_t half = cosines.size(1);
  at::Tensor all = qkv.clone().view({s.micro_batch_size, s.sequence_length, s.width()});
  const at::Tensor cosine = cosines.narrow(0, first_position, s.sequence_length).repeat({1, 2});
  const at::Tensor sine = sines.narrow(0, first_position, s.sequence_length).repeat({1, 2});
  for (int64_t head = 0; head < s.num_heads + s.num_kv_heads; ++head) {
    const int64_t place = s.interleaved ? (head % 2 == 0 ? head / 2 * 3 : head / 2 * 3 + 1) : head;
    const at::Tensor x = all.narrow(2, place * s.head_size, 2 * half);
    const at::Tensor turned = at::cat({-x.narrow(2, half, half), x.narrow(2, 0, half)}, 2);
    x.copy_(x * cosine + turned * sine);
  }
  return all.view({s.tokens(), s.width()});
}

TEST_P(RotateTest, EqualsRotateHalfAndTurnsBack) {
  struct Case {
    AttentionShape shape;
    int64_t half, first_position;
  };
  for (const Case& c : {Case{{2, 7, 4, 2, 16}, 8, 0}, Case{{2, 7, 4, 2, 16}, 8, 5}, Case{{1, 9, 6, 1, 10}, 3, 2},
                        Case{{3, 5, 3, 3, 6}, 1, 0}, Case{{2, 5, 3, 3, 16, true}, 4, 1},
                        Case{{1, 4, 2, 2, 5, true}, 2, 0}, Case{{1, 3, 1, 1, 66}, 33, 0}}) {
    const at::Tensor qkv = Random({c.shape.tokens(), c.shape.width()}), before = qkv.clone();
    const at::Tensor angles = Angles(20, c.half), cosines = Table(angles.cos()), sines = Table(angles.sin());
    Rotate(qkv, c.shape, cosines, sines, c.first_position, false);
    const at::Tensor want = Rotated(Exact(before), c.shape, Exact(cosines), Exact(sines), c.first_position);
    EXPECT_LT(RelativeError(qkv, want), Tolerance()) << c.half;
    const at::Tensor still = want == Exact(before);  // values, and channels past 2r
    EXPECT_TRUE(at::equal(Exact(qkv).masked_select(still), Exact(before).masked_select(still))) << c.half;
    EXPECT_GE(still.sum().item<int64_t>(), c.shape.tokens() * c.shape.num_kv_heads * c.shape.head_size);
    Rotate(qkv, c.shape, cosines, sines, c.first_position, true);
    EXPECT_LT(RelativeError(qkv, before), 2 * Tolerance()) << c.half;
  }
}

// The gradient of x R is dy R^T.
TEST_P(RotateTest, InverseIsTheGradient) {
  const AttentionShape shape{2, 6, 4, 2, 12};
  const at::Tensor angles = Angles(6, 4), cosines = Table(angles.cos()), sines = Table(angles.sin());
  const at::Tensor x = Random({12, shape.width()}), gradient = Random({12, shape.width()});
  at::Tensor ref = Exact(x).requires_grad_();
  Rotated(ref, shape, Exact(cosines), Exact(sines), 0).backward(Exact(gradient));
  Rotate(gradient, shape, cosines, sines, 0, true);
  EXPECT_LT(RelativeError(gradient, ref.grad()), Tolerance());
}

TEST_P(RotateTest, TailsEqualBodiesBitwise) {
  for (int64_t half = 1; half <= 40; ++half) {
    const AttentionShape shape{1, 2, 1, 1, 2 * half};
    const at::Tensor angles = Angles(2, half), cosines = Table(angles.cos()), sines = Table(angles.sin());
    const at::Tensor qkv = Random({2, shape.width()}), before = qkv.clone();
    Rotate(qkv, shape, cosines, sines, 0, false);
    const int64_t channel = half - 1;  // the pair alone
    const at::Tensor pair =
        at::cat({before.narrow(1, channel, 1), before.narrow(1, channel + half, 1), before.narrow(1, 0, 4)}, 1)
            .contiguous();
    Rotate(pair, {1, 2, 1, 1, 2}, cosines.narrow(1, channel, 1).contiguous(), sines.narrow(1, channel, 1).contiguous(),
           0, false);
    EXPECT_TRUE(BitwiseEqual(pair.narrow(1, 0, 1), qkv.narrow(1, channel, 1))) << half;
    EXPECT_TRUE(BitwiseEqual(pair.narrow(1, 1, 1), qkv.narrow(1, channel + half, 1))) << half;
  }
}

class DropoutTest : public KernelTest {
 protected:
  static at::Tensor Dropped(const at::Tensor& x, const DropoutKey& key) {
    const at::Tensor y = Empty(x.sizes());
    Dropout(x, {}, key, y);
    return y;
  }
  static at::Tensor Mask(int64_t rows, int64_t width, const DropoutKey& key) {
    return Exact(Dropped(at::ones({rows, width}, Options().dtype(Type())), key)) != 0;
  }
};

uint64_t Bits(const at::Tensor& mask) {  // of 64 elements, the first the highest
  uint64_t bits = 0;
  for (int64_t i = 0; i < 64; ++i) bits = bits << 1 | (mask.view(-1)[i].item<bool>() ? 1u : 0u);
  return bits;
}

// Made from a plain Philox4x32-10 that gives the published answers, by the words of DropoutKey.
TEST_P(DropoutTest, GoldenMasks) {
  DropoutKey key{.probability = 0.5,
                 .seed = 42,
                 .step = 7,
                 .first_sample = 3,
                 .layer = 2,
                 .site = 1,
                 .sequence_length = 1,
                 .first_position = 5,
                 .first_channel = 8};
  EXPECT_EQ(Bits(Mask(1, 64, key)), 0xf09ed43b78388527u);
  key.probability = 0.1;
  EXPECT_EQ(Bits(Mask(1, 64, key)), 0xfeffd6bf7ffff7ffu);
  EXPECT_EQ(Bits(Mask(1, 64, {.probability = 0.25, .seed = 0x123456789abcdef, .sequence_length = 1})),
            0xbfcfffefffcbb5bbu);
}

TEST_P(DropoutTest, MaskIsTheSameWhateverTheSplit) {
  const int64_t micro = 6, sequence = 10, width = 70;
  const DropoutKey key{
      .probability = 0.3, .seed = 9, .step = 4, .first_sample = 12, .layer = 3, .site = 1, .sequence_length = sequence};
  const at::Tensor x = Random({micro * sequence, width}) + 5;
  const at::Tensor whole = Dropped(x, key).view({micro, sequence, width});
  const at::Tensor cube = x.view({micro, sequence, width});
  for (int64_t first = 0; first < micro; first += 2) {
    for (int64_t position = 0; position < sequence; position += 5) {
      for (const auto& [channel, count] : {std::pair<int64_t, int64_t>{0, 70}, {4, 33}, {36, 34}, {68, 1}, {0, 3}}) {
        DropoutKey part = key;
        part.first_sample += first;
        part.first_position = position;
        part.first_channel = channel;
        part.sequence_length = 5;
        auto cut = [&, c = channel, n = count](const at::Tensor& t) {
          return t.narrow(0, first, 2).narrow(1, position, 5).narrow(2, c, n).reshape({10, n});
        };
        EXPECT_TRUE(BitwiseEqual(Dropped(cut(cube), part), cut(whole))) << first << " " << position << " " << channel;
      }
    }
  }
  for (int64_t row : {0, 1, 9, 10, 37}) {  // rows of the micro-batch that begin within a sequence
    DropoutKey part = key;
    part.first_row = row;
    EXPECT_TRUE(BitwiseEqual(Dropped(x.narrow(0, row, 13), part), whole.view({-1, width}).narrow(0, row, 13))) << row;
  }
}

TEST_P(DropoutTest, ShareMeanAndIndependence) {
  const int64_t rows = 512, width = 512, count = rows * width;
  const DropoutKey key{.probability = 0.1, .seed = 1, .step = 1, .layer = 1, .sequence_length = 64};
  const at::Tensor kept = Mask(rows, width, key).to(at::kDouble);
  const double deviation = std::sqrt(0.1 * 0.9 / static_cast<double>(count));
  EXPECT_NEAR(kept.mean().item<double>(), 0.9, 4 * deviation);
  EXPECT_NEAR(Exact(Dropped(at::ones({rows, width}, Options().dtype(Type())), key)).mean().item<double>(), 1,
              5 * deviation + (Narrow() ? 2e-3 : 0));
  EXPECT_LT((kept.mean(0) - 0.9).abs().max().item<double>(), 6 * std::sqrt(0.09 / static_cast<double>(rows)));
  EXPECT_LT((kept.mean(1) - 0.9).abs().max().item<double>(), 6 * std::sqrt(0.09 / static_cast<double>(width)));
  std::vector<DropoutKey> others(6, key);
  others[0].seed = 2;
  others[1].step = 2;
  others[2].first_sample = 8;
  others[3].layer = 2;
  others[4].site = 1;
  others[5].first_position = 64;
  for (size_t i = 0; i < others.size(); ++i) {
    const at::Tensor other = Mask(rows, width, others[i]).to(at::kDouble);
    const double covariance = ((kept - 0.9) * (other - 0.9)).mean().item<double>();
    EXPECT_LT(std::abs(covariance), 5 * 0.09 / std::sqrt(static_cast<double>(count))) << i;
  }
}

TEST_P(DropoutTest, ScalesAddsTheResidualAndWorksInPlace) {
  const at::Tensor x = Random({12, 37}), residual = Random({12, 37}), y = Empty({12, 37});
  const DropoutKey key{.probability = 0.25, .seed = 3, .sequence_length = 4};
  const at::Tensor kept = Mask(12, 37, key);
  const at::Tensor scaled = at::where(kept, Exact(x) / 0.75, at::zeros({}, at::kDouble));
  Dropout(x, {}, key, y);
  EXPECT_LT(RelativeError(y, scaled), Tolerance());
  EXPECT_TRUE(at::equal(Exact(y) != 0, kept));  // the gradient goes through the same mask
  const at::Tensor in_place = x.clone();
  Dropout(in_place, residual, key, in_place);
  EXPECT_LT(RelativeError(in_place, scaled + Exact(residual)), Tolerance());
  const at::Tensor nothing = Empty({12, 37});
  Dropout(x, {}, {.probability = 0, .sequence_length = 4}, nothing);
  EXPECT_TRUE(BitwiseEqual(nothing, x));
}

TEST_P(DropoutTest, WhatIsDroppedIsZeroEvenIfItWasNotFinite) {
  const DropoutKey key{.probability = 0.5, .sequence_length = 1};
  const at::Tensor kept = Mask(1, 64, key);
  const at::Tensor x = at::full({1, 64}, INFINITY, Options().dtype(Type()));
  const at::Tensor got = Exact(Dropped(x, key));
  EXPECT_TRUE(at::equal(got == 0, kept.logical_not()));
  EXPECT_TRUE(at::equal(got.isinf(), kept));
}

TRIREME_INSTANTIATE_KERNEL_TEST(RotateTest);
TRIREME_INSTANTIATE_KERNEL_TEST(DropoutTest);

}  // namespace
}  // namespace trireme::kernels
