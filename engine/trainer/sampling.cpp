#include "engine/trainer/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

namespace trireme {
namespace {

// The smallest logit among the K largest.
float LowestOfTop(std::span<const float> logits, int64_t k) {
  if (k <= 0 || k >= static_cast<int64_t>(logits.size())) return -INFINITY;
  std::vector<float> sorted(logits.begin(), logits.end());
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
  return sorted[static_cast<size_t>(k - 1)];
}

// Keeps the fewest largest weights whose sum is at least `share` of all, at least one; the others become 0.
void KeepNucleus(std::vector<double>& weights, double share) {
  std::vector<int32_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int32_t id) { return weights[static_cast<size_t>(id)]; });
  const double wanted = share * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    double& weight = weights[static_cast<size_t>(order[i])];
    if (i > 0 && sum >= wanted) weight = 0;
    sum += weight;
  }
}

}  // namespace

int32_t Sample(std::span<const float> logits, const Sampling& sampling, std::mt19937_64& random) {
  const auto best = std::ranges::max_element(logits);
  if (sampling.temperature <= 0) return static_cast<int32_t>(best - logits.begin());
  const float lowest = LowestOfTop(logits, sampling.top_k);
  std::vector<double> weights(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = logits[i] < lowest ? 0 : std::exp((double{logits[i]} - double{*best}) / sampling.temperature);
  }
  if (sampling.top_p < 1) KeepNucleus(weights, sampling.top_p);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double left = total * static_cast<double>(random() >> 11) * 0x1.0p-53;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<int32_t>(i);
  }
  return static_cast<int32_t>(best - logits.begin());
}

}  // namespace trireme
