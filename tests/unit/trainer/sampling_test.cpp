#include "engine/trainer/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace trireme {
namespace {

// Shares of 40,000 draws, whose standard deviation is at most 0.0025.
std::vector<double> SharesOf(const std::vector<float>& logits, const Sampling& sampling) {
  constexpr int kDraws = 40000;
  std::mt19937_64 random(sampling.seed);
  std::vector<double> shares(logits.size());
  for (int i = 0; i < kDraws; ++i) shares[static_cast<size_t>(Sample(logits, sampling, random))] += 1.0 / kDraws;
  return shares;
}

std::vector<float> LogitsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3));
  return logits;
}

void ExpectShares(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (want[i] == 0) {
      EXPECT_EQ(got[i], 0) << "token " << i;
    } else {
      EXPECT_NEAR(got[i], want[i], 0.011) << "token " << i;
    }
  }
}

const std::vector<double> kFive = {0.15, 0.4, 0.05, 0.3, 0.1};

TEST(Sampling, DrawsByProbability) { ExpectShares(SharesOf(LogitsOf(kFive), {}), kFive); }

TEST(Sampling, TemperatureRaisesProbabilitiesToAPower) {
  for (const double temperature : {0.5, 2.0}) {
    std::vector<double> want;
    double total = 0;
    for (const double p : kFive) total += std::pow(p, 1 / temperature);
    for (const double p : kFive) want.push_back(std::pow(p, 1 / temperature) / total);
    ExpectShares(SharesOf(LogitsOf(kFive), {.temperature = temperature}), want);
  }
}

TEST(Sampling, TemperatureZeroIsTheFirstOfTheMostLikely) {
  std::mt19937_64 random(1);
  EXPECT_EQ(Sample(LogitsOf(kFive), {.temperature = 0}, random), 1);
  EXPECT_EQ(Sample(std::vector<float>{1, 7, 2, 7}, {.temperature = 0}, random), 1);
  EXPECT_EQ(random(), std::mt19937_64(1)());  // no number was drawn
}

TEST(Sampling, TopKKeepsTheKMostLikelyAndTheirEquals) {
  ExpectShares(SharesOf(LogitsOf(kFive), {.top_k = 2}), {0, 4.0 / 7, 0, 3.0 / 7, 0});
  ExpectShares(SharesOf(LogitsOf(kFive), {.top_k = 1}), {0, 1, 0, 0, 0});
  ExpectShares(SharesOf(LogitsOf(kFive), {.top_k = 99}), kFive);
  ExpectShares(SharesOf({2, 1, 2, 2}, {.top_k = 2}), {1.0 / 3, 0, 1.0 / 3, 1.0 / 3});
}

// The fewest whose sum reaches P: 0.4 + 0.3 lacks a little of 0.71, 0.15 more reach it.
TEST(Sampling, TopPKeepsTheFewestThatReachTheProbability) {
  ExpectShares(SharesOf(LogitsOf(kFive), {.top_p = 0.69}), {0, 4.0 / 7, 0, 3.0 / 7, 0});
  ExpectShares(SharesOf(LogitsOf(kFive), {.top_p = 0.71}), {0.15 / 0.85, 0.4 / 0.85, 0, 0.3 / 0.85, 0});
  ExpectShares(SharesOf(LogitsOf(kFive), {.top_p = 1e-9}), {0, 1, 0, 0, 0});
  ExpectShares(SharesOf(LogitsOf(kFive), {.top_p = 1}), kFive);
}

// After top_k 3 the shares are 0.4, 0.3, 0.15 of 0.85: 0.8 of that is reached by the first two, 0.83 by all three.
TEST(Sampling, TopPCountsWhatTopKLeaves) {
  ExpectShares(SharesOf(LogitsOf(kFive), {.top_k = 3, .top_p = 0.8}), {0, 4.0 / 7, 0, 3.0 / 7, 0});
  ExpectShares(SharesOf(LogitsOf(kFive), {.top_k = 3, .top_p = 0.83}), {0.15 / 0.85, 0.4 / 0.85, 0, 0.3 / 0.85, 0});
}

TEST(Sampling, ASeedGivesTheSameDraws) {
  std::mt19937_64 a(5), b(5), c(6);
  std::vector<int32_t> of_a, of_b, of_c;
  for (int i = 0; i < 50; ++i) {
    of_a.push_back(Sample(LogitsOf(kFive), {}, a));
    of_b.push_back(Sample(LogitsOf(kFive), {}, b));
    of_c.push_back(Sample(LogitsOf(kFive), {}, c));
  }
  EXPECT_EQ(of_a, of_b);
  EXPECT_NE(of_a, of_c);
}

}  // namespace
}  // namespace trireme
