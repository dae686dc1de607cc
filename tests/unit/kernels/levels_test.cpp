// The loops compiled for any machine and those compiled for AVX2 give the same bits.
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
  std::vector<A> mean(kRows), rstd(kRows), dweight(weight.size()), dbias(weight.size());
  NormVectors<Level, T>::Forward(x.data(), weight.data(), bias.data(), A(1e-5), y.data(), mean.data(), rstd.data(),
                                 kRows, width);
  NormVectors<Level, T>::Backward(dy.data(), x.data(), mean.data(), rstd.data(), weight.data(), y.data(), dx.data(),
                                  kRows, width);
  NormVectors<Level, T>::WeightSums(dy.data(), x.data(), mean.data(), rstd.data(), kRows, width, 0, width,
                                    dweight.data(), dbias.data());
  for (const auto* values : {&y, &dx}) keep(*values);
  for (const auto* values : {&mean, &rstd, &dweight, &dbias}) keep(*values);
  ActivationVectors<Level, T>::GeluForward(x.data(), act.data(), count);
  keep(act);
  ActivationVectors<Level, T>::GeluBackward(x.data(), dy.data(), act.data(), count);
  keep(act);
  keep(std::vector<A>{LossVectors<Level, T>::Row(logits.data(), width, width, width / 2, A(0.5), true)});
  keep(logits);
  keep(std::vector<double>{SquareVectors<Level, T>::Sum(x.data(), count)});
  const AdamStep<M> adam{M(0.9), M(0.99), M(0.1), M(0.01), M(1e-3), M(1e-8), M(0.1), M(0.5), true};
  std::vector<M> master = Numbers<M>(count, 5), first = Numbers<M>(count, 6), second = Numbers<M>(count, 7);
  for (M& value : second) value *= value;
  const std::vector<G> gradient = Numbers<G>(count, 8);
  std::vector<T> weights(x.size());
  UpdateVectors<Level, M, G, T>::Adam(master.data(), first.data(), second.data(), gradient.data(), weights.data(),
                                      count, adam);
  const SgdStep<M> sgd{M(0.9), M(1), M(1e-2), M(0.1), M(1), true, false};
  UpdateVectors<Level, M, G, T>::Sgd(master.data(), first.data(), gradient.data(), weights.data(), count, sgd);
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
  }
}
#endif

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
