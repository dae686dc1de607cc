#include "engine/data/split.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <string>

#include "engine/base/error.h"
#include "engine/base/strings.h"

namespace trireme::data {
namespace {

[[noreturn]] void Fail(std::string_view text, const std::string& what) {
  throw Error(ErrorCode::kUsage, "DAT007", fmt::format("\"{}\": {}", text, what), "--split",
              "give up to three weights for training, validation and test, for example 969,30,1");
}

}  // namespace

SplitWeights ParseSplit(std::string_view text) {
  const auto parts = Split(text, text.find('/') == std::string_view::npos ? ',' : '/');
  if (parts.size() > 3) Fail(text, fmt::format("{} weights, at most 3 are possible", parts.size()));
  SplitWeights weights{};
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string_view part = Trim(parts[i]);
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), weights[i]);
    if (error != std::errc() || end != part.data() + part.size() || !(weights[i] >= 0) || !std::isfinite(weights[i])) {
      Fail(text, fmt::format("\"{}\" is not a weight", part));
    }
  }
  const double sum = weights[0] + weights[1] + weights[2];
  if (!(sum > 0) || !std::isfinite(sum)) Fail(text, "the weights add up to nothing");
  for (double& weight : weights) weight /= sum;
  return weights;
}

std::array<SplitRange, 3> SplitOf(const SplitWeights& weights, int64_t num_sequences) {
  const auto boundary = [&](double fraction) {
    return static_cast<int64_t>(std::nearbyint(fraction * static_cast<double>(num_sequences)));
  };
  std::array<SplitRange, 3> ranges;
  double low = 0;
  for (size_t i = 0; i < 3; ++i) {
    const double high = low + weights[i];
    ranges[i] = {boundary(low), boundary(high)};
    low = high;
  }
  return ranges;
}

}  // namespace trireme::data
