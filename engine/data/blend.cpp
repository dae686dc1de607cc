#include "engine/data/blend.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "engine/base/error.h"
#include "engine/base/strings.h"

namespace trireme::data {
namespace {

[[noreturn]] void Fail(const std::string& what) {
  throw Error(ErrorCode::kUsage, "DAT027", what, "--data-path",
              "write PREFIX, or PREFIX PREFIX ..., or WEIGHT PREFIX WEIGHT PREFIX ... with weights above 0");
}

std::optional<double> NumberOf(const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

// numpy.sum: eight running sums from 8 values on, halves from 128 on.
double PairwiseSum(std::span<const double> values) {
  double sum = 0;
  if (values.size() < 8) {
    for (const double value : values) sum += value;
    return sum;
  }
  if (values.size() > 128) {
    const size_t half = values.size() / 2 / 8 * 8;
    return PairwiseSum(values.first(half)) + PairwiseSum(values.subspan(half));
  }
  double r[8];
  std::copy_n(values.begin(), 8, r);
  size_t i = 8;
  for (; i + 8 <= values.size(); i += 8) {
    for (size_t j = 0; j < 8; ++j) r[j] += values[i + j];
  }
  sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < values.size(); ++i) sum += values[i];
  return sum;
}

// Appends the next sample of `dataset`.
void Take(BlendOrder& order, std::vector<int64_t>& taken, size_t dataset) {
  order.datasets.push_back(static_cast<int16_t>(dataset));
  order.samples.push_back(taken[dataset]++);
}

}  // namespace

Blend ParseBlend(const std::vector<std::string>& words) {
  Blend blend;
  std::vector<double> weights;
  if (words.size() % 2 == 0) {
    for (size_t i = 0; i < words.size(); i += 2) {
      if (const auto weight = NumberOf(words[i])) weights.push_back(*weight);
    }
    if (!weights.empty() && 2 * weights.size() != words.size())
      Fail(
          fmt::format("{} of {} datasets have a weight in \"{}\"", weights.size(), words.size() / 2, Join(words, " ")));
  }
  for (size_t i = weights.empty() ? 0 : 1; i < words.size(); i += weights.empty() ? 1 : 2)
    blend.prefixes.emplace_back(Trim(words[i]));
  if (blend.prefixes.empty()) Fail("no dataset is named");
  if (blend.prefixes.size() > static_cast<size_t>(std::numeric_limits<int16_t>::max()))
    Fail(fmt::format("{} datasets, at most 32767 are possible", blend.prefixes.size()));
  for (const double weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight)) Fail(fmt::format("{} is no weight", weight));
  }
  if (!weights.empty()) blend.weights = NormalizeWeights(weights);
  return blend;
}

std::vector<double> NormalizeWeights(const std::vector<double>& weights) {
  const double sum = PairwiseSum(weights);
  std::vector<double> out;
  for (const double weight : weights) out.push_back(weight / sum);
  return out;
}

int64_t WantedOf(double weight, int64_t size) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(size) * weight));
}

int64_t OrderedOf(double weight, int64_t size) {
  constexpr double kSurplus = 0.005;  // mid_level_dataset_surplus
  return static_cast<int64_t>(std::ceil(static_cast<double>(WantedOf(weight, size)) * (1 + kSurplus)));
}

BlendOrder OrderByWeights(const std::vector<double>& weights, int64_t size) {
  BlendOrder order;
  order.datasets.reserve(static_cast<size_t>(size));
  order.samples.reserve(static_cast<size_t>(size));
  std::vector<int64_t> taken(weights.size(), 0);
  for (int64_t i = 0; i < size; ++i) {
    const double place = std::max(static_cast<double>(i), 1.0);
    size_t behind = 0;
    double most = weights[0] * place - static_cast<double>(taken[0]);
    for (size_t d = 1; d < weights.size(); ++d) {
      const double error = weights[d] * place - static_cast<double>(taken[d]);
      if (error > most) {
        most = error;
        behind = d;
      }
    }
    Take(order, taken, behind);
  }
  return order;
}

BlendOrder OrderOfAll(const std::vector<int64_t>& sizes) {
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  BlendOrder order;
  std::vector<int64_t> taken(sizes.size(), 0);
  for (int64_t i = 0; i < total; ++i) {
    const double place = std::max(static_cast<double>(i), 1.0);
    size_t behind = sizes.size();
    double most = std::numeric_limits<double>::lowest();
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (taken[d] == sizes[d]) continue;
      const double share = static_cast<double>(sizes[d]) / static_cast<double>(total);
      const double error = share * place - static_cast<double>(taken[d]);
      if (error > most) {
        most = error;
        behind = d;
      }
    }
    Take(order, taken, behind);
  }
  return order;
}

}  // namespace trireme::data
