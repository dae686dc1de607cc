// The loops compiled for any machine and those compiled for AVX2 give the same bits.
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "engine/kernels/cpu/vectors.h"

namespace trireme::kernels {
namespace {

template <typename T>
std::vector<T> Numbers(int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0, 2);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) Store(normal(generator), value);
  return values;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <typename M>
AdamStep<M> Step(bool decoupled) {
  return {.beta1 = M(0.9),
          .beta2 = M(0.99),
          .epsilon = M(1e-8),
          .gradient_factor = M(0.5),
          .step_size = M(1e-2),
          .inverse_root = M(10),
          .coupled_decay = decoupled ? M(0) : M(0.1),
          .decoupled_decay = decoupled ? M(1e-4) : M(0)};
}

// Everything that the loops of one level make of the same inputs, as bytes.
template <typename Level, typename T, typename G>
std::vector<char> Everything(int64_t width) {
  using A = Acc<T>;
  using M = A;
  constexpr int64_t kRows = 3;
  const int64_t count = kRows * width;
  std::vector<char> bytes;
  auto keep = [&](const auto& values) {
    const auto* data = reinterpret_cast<const char*>(values.data());
    bytes.insert(bytes.end(), data, data + values.size() * sizeof(values[0]));
  };
  const std::vector<T> x = Numbers<T>(count, 1), dy = Numbers<T>(count, 2), weight = Numbers<T>(width, 3),
                       bias = Numbers<T>(width, 4);
  std::vector<T> y(x.size()), dx(x.size()), act(x.size()), logits = x;
  std::vector<A> mean(kRows), rstd(kRows), dweight(weight.size());
  for (const bool centred : {true, false}) {  // LayerNorm, RMSNorm
    A* means = centred ? mean.data() : nullptr;
    NormVectors<Level, T>::Forward(x.data(), weight.data(), centred ? bias.data() : nullptr, A(1e-5), y.data(), means,
                                   rstd.data(), kRows, width);
    NormVectors<Level, T>::Backward(dy.data(), x.data(), means, rstd.data(), weight.data(), y.data(), dx.data(), kRows,
                                    width);
    NormVectors<Level, T>::WeightSums(dy.data(), x.data(), means, rstd.data(), kRows, width, 0, width, dweight.data());
    for (const auto* values : {&y, &dx}) keep(*values);
    for (const auto* values : {&mean, &rstd, &dweight}) keep(*values);
  }
  NormVectors<Level, T>::ColumnSums(dy.data(), kRows, width, 0, width, dweight.data());
  keep(dweight);
  for (const auto forward : {ActivationVectors<Level, T>::GeluTanhForward, ActivationVectors<Level, T>::GeluForward}) {
    forward(x.data(), act.data(), count);
    keep(act);
  }
  for (const auto backward :
       {ActivationVectors<Level, T>::GeluTanhBackward, ActivationVectors<Level, T>::GeluBackward}) {
    backward(x.data(), dy.data(), act.data(), count);
    keep(act);
  }
  ActivationVectors<Level, T>::SwiGluForward(x.data(), dy.data(), act.data(), count);
  ActivationVectors<Level, T>::SwiGluBackward(x.data(), dy.data(), act.data(), dx.data(), y.data(), count);
  for (const auto* values : {&act, &dx, &y}) keep(*values);
  const std::vector<A> cosines = Numbers<A>(width, 9), sines = Numbers<A>(width, 10);
  PositionVectors<Level, T>::Rotate(act.data(), cosines.data(), sines.data(), width, true);
  const DropoutMask mask{.key_0 = 5, .key_1 = 6, .first_block = 3, .threshold = 1u << 30, .scale = 4.0 / 3};
  PositionVectors<Level, T>::Dropout(x.data(), dy.data(), y.data(), count, mask, 7, 8);
  for (const auto* values : {&act, &y}) keep(*values);
  keep(std::vector<A>{LossVectors<Level, T>::Row(logits.data(), width, width, width / 2, A(0.5), true)});
  keep(logits);
  keep(std::vector<double>{SquareVectors<Level, T>::Sum(x.data(), count)});
  const AdamStep<M> adam = Step<M>(/*decoupled=*/true);
  std::vector<M> master = Numbers<M>(count, 5), first = Numbers<M>(count, 6), second = Numbers<M>(count, 7);
  for (M& value : second) value *= value;
  const std::vector<G> gradient = Numbers<G>(count, 8);
  std::vector<T> weights(x.size());
  AdamVectors<Level, M, G, T>::Update(master.data(), first.data(), second.data(), gradient.data(), weights.data(),
                                      count, adam, false);
  const SgdStep<M> sgd{M(0.9), M(1), M(1e-2), M(0.1), M(1), true, false};
  UpdateVectors<Level, M, G, T>::Sgd(master.data(), first.data(), gradient.data(), weights.data(), count, sgd);
  const AdagradStep<M> adagrad{M(1e-2), M(1e-10), M(0.1), M(0.5)};
  UpdateVectors<Level, M, G, T>::Adagrad(master.data(), second.data(), gradient.data(), weights.data(), count, adagrad);
  const LionStep<M> lion{M(0.9), M(0.99), M(1e-3), M(0.1), M(0.5)};
  UpdateVectors<Level, M, G, T>::Lion(master.data(), first.data(), gradient.data(), weights.data(), count, lion);
  for (const bool inside : {false, true}) {
    const LambStep<M> lamb{M(0.9), M(0.99), M(1e-8), M(0.1), M(0.5), inside};
    std::vector<M> u(x.size());
    LambMomentVectors<Level, M, G>::Update(master.data(), first.data(), second.data(), gradient.data(), u.data(), count,
                                           lamb);
    LambVectors<Level, M, T>::Apply(master.data(), first.data(), second.data(), weights.data(), count, lamb, M(1e-2));
    keep(u);
  }
  for (const auto* values : {&master, &first, &second}) keep(*values);
  keep(weights);
  return bytes;
}

#ifdef TRIREME_KERNELS_AVX2
TEST(LevelsTest, Avx2GivesTheBitsOfTheBaseline) {
  if (!HasAvx2()) GTEST_SKIP() << "this machine has no AVX2";
  for (int64_t width : {2, 7, 16, 31, 33, 100, 2500}) {
    EXPECT_TRUE(SameBits(Everything<Baseline, double, double>(width), Everything<Avx2, double, double>(width)))
        << width;
    EXPECT_TRUE(SameBits(Everything<Baseline, float, float>(width), Everything<Avx2, float, float>(width))) << width;
    EXPECT_TRUE(SameBits(Everything<Baseline, BFloat16, float>(width), Everything<Avx2, BFloat16, float>(width)))
        << width;
    EXPECT_TRUE(SameBits(Everything<Baseline, BFloat16, BFloat16>(width), Everything<Avx2, BFloat16, BFloat16>(width)))
        << width;
    EXPECT_TRUE(SameBits(Everything<Baseline, Float16, float>(width), Everything<Avx2, Float16, float>(width)))
        << width;
    EXPECT_TRUE(SameBits(Everything<Baseline, Float16, Float16>(width), Everything<Avx2, Float16, Float16>(width)))
        << width;
  }
}
#endif

// Masters, moments and weights after one update, cut at `cuts`, the weights `shift` elements into a cache line.
template <typename Level, typename M, typename G, typename W>
std::vector<char> Adam(const std::vector<int64_t>& cuts, int64_t shift, bool stream, bool decoupled) {
  const int64_t count = cuts.back();
  std::vector<M> master = Numbers<M>(count, 5), first = Numbers<M>(count, 6), second = Numbers<M>(count, 7);
  for (M& value : second) value *= value;
  const std::vector<G> gradient = Numbers<G>(count, 8);
  std::vector<W> room(static_cast<size_t>(count + shift) + 64);
  auto* weights = reinterpret_cast<W*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64) + shift;
  const AdamStep<M> step = Step<M>(decoupled);
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const int64_t begin = cuts[i];
    AdamVectors<Level, M, G, W>::Update(master.data() + begin, first.data() + begin, second.data() + begin,
                                        gradient.data() + begin, weights + begin, cuts[i + 1] - begin, step, stream);
  }
  std::vector<char> bytes;
  auto keep = [&](const auto* data) {
    const auto* begin = reinterpret_cast<const char*>(data);
    bytes.insert(bytes.end(), begin, begin + static_cast<size_t>(count) * sizeof(*data));
  };
  for (const auto* values : {&master, &first, &second}) keep(values->data());
  keep(weights);
  return bytes;
}

template <typename M, typename G, typename W>
void ExpectOneAdam() {
  for (const bool decoupled : {false, true}) {
    const auto whole = Adam<Baseline, M, G, W>({0, 331}, 0, false, decoupled);
    for (const int64_t shift : {0, 1, 17, 31}) {
      for (const bool stream : {false, true}) {
        for (const auto& cuts : std::vector<std::vector<int64_t>>{
                 {0, 331}, {0, 1, 3, 6, 38, 70, 71, 103, 140, 236, 299, 331}, {0, 32, 64, 320, 331}}) {
          EXPECT_EQ(whole, (Adam<Baseline, M, G, W>(cuts, shift, stream, decoupled)));
#ifdef TRIREME_KERNELS_AVX2
          if (HasAvx2()) {
            EXPECT_EQ(whole, (Adam<Avx2, M, G, W>(cuts, shift, stream, decoupled)));
          }
          if (HasAvx512()) {
            EXPECT_EQ(whole, (Adam<Avx512, M, G, W>(cuts, shift, stream, decoupled)));
          }
#endif
        }
      }
    }
  }
}

TEST(LevelsTest, PRF_06_AdamGivesTheSameBitsAtEveryLevelAlignmentAndCut) {
  ExpectOneAdam<double, double, double>();
  ExpectOneAdam<float, float, float>();
  ExpectOneAdam<float, float, BFloat16>();
  ExpectOneAdam<float, BFloat16, BFloat16>();
  ExpectOneAdam<float, Float16, Float16>();
}

// Against LibTorch's own conversion: every fp16 value; every midpoint between two of them and its fp32 neighbours.
TEST(LevelsTest, HalfConversionsAreExactAndRoundToNearestEven) {
  auto half_bits = [](float value) {
    Float16 half;
    Store(value, half);
    return half.bits;
  };
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    const float got = Load(Float16{narrow}), want = static_cast<float>(c10::Half(narrow, c10::Half::from_bits()));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
      EXPECT_TRUE((half_bits(got) & 0x7fffu) > 0x7c00u) << bits;
      continue;
    }
    ASSERT_EQ(got, want) << bits;
    ASSERT_EQ(half_bits(got), narrow);
    if ((bits & 0x7fffu) >= 0x7c00u) continue;
    const float next =
        (bits & 0x7fffu) == 0x7bffu ? std::copysign(65536.0f, got) : Load(Float16{static_cast<uint16_t>(bits + 1)});
    const float middle = (got + next) / 2;
    for (float value : {middle, std::nextafter(middle, got), std::nextafter(middle, next)}) {
      ASSERT_EQ(half_bits(value), c10::Half(value).x) << value;
    }
  }
  EXPECT_EQ(half_bits(3e38f), 0x7c00u);
  EXPECT_EQ(half_bits(-INFINITY), 0xfc00u);
  EXPECT_EQ(half_bits(1e-38f), 0u);
}

TEST(LevelsTest, ExponentialOfAnyFloatWithinTwoUlp) {  // through GELU's tails and the softmax of two columns
  for (double difference = -80; difference < 0; difference += 0.37) {
    float logits[2] = {0, static_cast<float>(difference)};
    LossVectors<Baseline, float>::Row(logits, 2, 2, 0, 1.0f, true);
    const double exact = std::exp(static_cast<double>(static_cast<float>(difference)));
    EXPECT_NEAR(static_cast<double>(logits[1]) / (exact / (1 + exact)), 1, 6e-7) << difference;
  }
}

}  // namespace
}  // namespace trireme::kernels
