#include "engine/plan/families/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

int64_t RotatedChannels(const RopeSpec& spec, int64_t head_size) {
  return static_cast<int64_t>(static_cast<double>(head_size) * spec.rotary_fraction);
}

// theta^(-2 i / channels)
std::vector<double> PlainFrequencies(double theta, int64_t channels) {
  std::vector<double> inverse;
  for (int64_t c = 0; c < channels; c += 2) {
    inverse.push_back(1 / std::pow(theta, static_cast<double>(c) / static_cast<double>(channels)));
  }
  return inverse;
}

// arXiv:2309.00071, 3.2-3.4. Fast channels keep their frequency, slow ones are divided by the factor, a ramp between.
RopeFrequencies Yarn(const RopeSpec& spec, int64_t channels, double original) {
  const double dim = static_cast<double>(channels);
  const auto scale = [&](double m) { return spec.factor <= 1 ? 1.0 : 0.1 * m * std::log(spec.factor) + 1; };
  RopeFrequencies result{PlainFrequencies(spec.theta, channels), 1};
  const bool both = spec.mscale.value_or(0) != 0 && spec.mscale_all_dim.value_or(0) != 0;
  result.factor = spec.attention_factor.value_or(both ? scale(*spec.mscale) / scale(*spec.mscale_all_dim) : scale(1));
  const auto channel_of = [&](double rotations) {  // the pair that turns so often over the original positions
    return dim * std::log(original / (rotations * kTwoPi)) / (2 * std::log(spec.theta));
  };
  double low = channel_of(spec.beta_fast), high = channel_of(spec.beta_slow);
  if (spec.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < result.inverse.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    result.inverse[i] *= stretched / spec.factor + (1 - stretched);
  }
  return result;
}

// arXiv:2402.13753: a factor a channel, found by search.
RopeFrequencies LongRope(const RopeSpec& spec, int64_t channels, double original, double length) {
  RopeFrequencies result{PlainFrequencies(spec.theta, channels), 1};
  result.factor = spec.attention_factor.value_or(
      spec.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(spec.factor) / std::log(original)));
  const std::vector<double>& factors = length > original ? spec.long_factor : spec.short_factor;
  for (size_t i = 0; i < result.inverse.size(); ++i) result.inverse[i] /= factors.at(i);
  return result;
}

// Hugging Face's rope_type "llama3": long waves are divided by the factor, short ones kept, a blend between.
void StretchAsLlama3(const RopeSpec& spec, double original, std::vector<double>& inverse) {
  for (double& frequency : inverse) {
    const double turns = original * frequency / kTwoPi;  // over the original positions
    if (turns < spec.low_freq_factor) {
      frequency /= spec.factor;
    } else if (turns <= spec.high_freq_factor) {
      const double keep = (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor);
      frequency = (1 - keep) * frequency / spec.factor + keep * frequency;
    }
  }
}

}  // namespace

int64_t RotatedPairs(const RopeSpec& spec, int64_t head_size) { return (RotatedChannels(spec, head_size) + 1) / 2; }

RopeFrequencies MakeRopeFrequencies(const RopeSpec& spec, int64_t head_size, int64_t max_position_embeddings,
                                    int64_t sequence_length) {
  const int64_t channels = RotatedChannels(spec, head_size);
  const double positions = static_cast<double>(max_position_embeddings);
  const double length = static_cast<double>(sequence_length);
  const double original = spec.original_max_position_embeddings > 0
                              ? static_cast<double>(spec.original_max_position_embeddings)
                              : positions;
  RopeFrequencies result;
  switch (spec.scaling) {
    case RopeSpec::Scaling::kYarn:
      return Yarn(spec, channels, original);
    case RopeSpec::Scaling::kLongRope:
      return LongRope(spec, channels, original, length);
    case RopeSpec::Scaling::kDynamic: {
      const double stretch = spec.factor * std::max(length, positions) / positions - (spec.factor - 1);
      const double dim = static_cast<double>(channels);
      result.inverse = PlainFrequencies(spec.theta * std::pow(stretch, dim / (dim - 2)), channels);
      return result;
    }
    case RopeSpec::Scaling::kLinear:
      result.inverse = PlainFrequencies(spec.theta, channels);
      for (double& frequency : result.inverse) frequency /= spec.factor;
      return result;
    case RopeSpec::Scaling::kLlama3:
      result.inverse = PlainFrequencies(spec.theta, channels);
      StretchAsLlama3(spec, original, result.inverse);
      return result;
    case RopeSpec::Scaling::kNone:
      break;
  }
  result.inverse = PlainFrequencies(spec.theta, channels);
  return result;
}

RopeFrequencies MakeRopeFrequencies(const ModelSpec& model, int64_t sequence_length) {
  return MakeRopeFrequencies(model.rope, model.HeadSize(), model.max_position_embeddings, sequence_length);
}

int64_t MaxPositions(const ModelSpec& model) {
  const RopeSpec& rope = model.rope;
  if (!model.rotary() || rope.scaling == RopeSpec::Scaling::kNone) return model.max_position_embeddings;
  const int64_t original =
      rope.original_max_position_embeddings > 0 ? rope.original_max_position_embeddings : model.max_position_embeddings;
  return std::max(model.max_position_embeddings, static_cast<int64_t>(static_cast<double>(original) * rope.factor));
}

int64_t RopeTableBytes(const ModelSpec& model, DType compute_dtype, int64_t positions) {
  if (!model.rotary()) return 0;
  return 2 * positions * RotatedPairs(model.rope, model.HeadSize()) * (compute_dtype == DType::kFloat64 ? 8 : 4);
}

}  // namespace trireme
