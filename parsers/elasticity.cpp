#include "parsers/elasticity.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

namespace trireme {
namespace {

// Highly composite numbers: a batch that is a multiple of one has many divisors.
constexpr std::array<int64_t, 38> kComposites = {
    1,     2,     4,     6,      12,     24,     36,     48,     60,     120,    180,    240,   360,
    720,   840,   1260,  1680,   2520,   5040,   7560,   10080,  15120,  20160,  25200,  27720, 45360,
    50400, 55440, 83160, 110880, 166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720};

struct Choice {
  int64_t batch = 0;
  std::set<int64_t> counts;  // numbers of replicas that it can be divided over
};

std::set<int64_t> Candidates(const std::vector<int64_t>& micro, int64_t largest) {
  std::vector<int64_t> bases = micro;
  int64_t multiple = 1;
  for (const int64_t size : micro) {
    if (multiple <= largest) multiple = std::lcm(multiple, size);
  }
  bases.push_back(multiple);
  std::set<int64_t> candidates;
  for (const int64_t base : bases) {
    if (base > largest) continue;
    const auto above = std::ranges::upper_bound(kComposites, largest / base);
    candidates.insert(base == largest ? base : base * *(above - 1));
  }
  return candidates;
}

std::set<int64_t> Counts(int64_t batch, const std::vector<int64_t>& micro, int64_t least, int64_t most) {
  std::set<int64_t> counts;
  const auto add = [&](int64_t count) {
    if (count >= least && count <= most) counts.insert(count);
  };
  for (const int64_t size : micro) {
    if (batch % size != 0) continue;
    const int64_t whole = batch / size;
    add(whole);
    for (int64_t count = 1; count * count <= whole; ++count) {
      if (whole % count != 0) continue;
      for (const int64_t divisor : {count, whole / count}) {
        if (divisor <= whole / 2) add(divisor);
      }
    }
  }
  return counts;
}

Choice Choose(const ElasticityConfig& config, int64_t largest, int64_t least, int64_t most) {
  Choice best;
  for (const int64_t batch : Candidates(config.micro_batch_sizes, largest)) {  // ascending
    std::set<int64_t> counts = Counts(batch, config.micro_batch_sizes, least, most);
    const bool wins = counts.size() > best.counts.size() ||
                      (counts.size() == best.counts.size() && config.prefer_larger_batch && batch > best.batch);
    if (best.batch == 0 || wins) best = {batch, std::move(counts)};
  }
  return best;
}

// Version 0.2 counts in nodes; replicas that no batch suits get the largest (or smallest) batch for them alone.
Choice ChooseByNode(const ElasticityConfig& config, int64_t replicas) {
  const int64_t per_node = config.num_gpus_per_node / config.model_parallel_size;
  const int64_t largest = config.max_train_batch_size / per_node;
  int64_t least = config.min_gpus / config.num_gpus_per_node, most = config.max_gpus / config.num_gpus_per_node;
  if (least == 0) least = 1;
  if (most == 0) most = largest / std::ranges::min(config.micro_batch_sizes);
  const Choice nodes = Choose(config, largest, least, most);
  Choice choice{nodes.batch * per_node, {}};
  for (const int64_t count : nodes.counts) choice.counts.insert(count * per_node);
  if (choice.counts.contains(replicas / config.model_parallel_size)) return choice;
  const int64_t ranks = replicas / config.num_gpus_per_node * per_node;
  Choice alone;
  if (ranks > 0) alone.counts.insert(ranks);
  for (const int64_t size : config.micro_batch_sizes) {
    const int64_t unit = size * std::max<int64_t>(ranks, 1);
    const int64_t batch = unit * (config.max_train_batch_size / unit);
    if (alone.batch == 0 || (batch > alone.batch) == config.prefer_larger_batch) alone.batch = batch;
  }
  return alone;
}

std::string Nearest(const std::set<int64_t>& counts, int64_t wanted) {
  const auto above = counts.lower_bound(wanted);
  std::string text;
  if (above != counts.begin()) text = fmt::format("{}", *std::prev(above));
  if (above != counts.end()) text += fmt::format("{}{}", text.empty() ? "" : " or ", *above);
  return text;
}

}  // namespace

ElasticResult ResolveElastic(const ElasticityConfig& config, int64_t replicas) {
  const int64_t widest = std::ranges::max(config.micro_batch_sizes);
  const int64_t per_node = config.num_gpus_per_node / config.model_parallel_size;
  const int64_t largest = config.version < 0.2 ? config.max_train_batch_size : config.max_train_batch_size / per_node;
  if (widest > largest) {
    return {std::nullopt, fmt::format("the micro-batch {} is larger than the largest batch {}", widest, largest),
            fmt::format("remove it from micro_batch_sizes, or set max_train_batch_size to {} or more",
                        widest * (config.version < 0.2 ? 1 : per_node))};
  }
  const Choice choice =
      config.version < 0.2 ? Choose(config, largest, config.min_gpus, config.max_gpus) : ChooseByNode(config, replicas);
  if (!choice.counts.contains(replicas)) {
    const std::string near = Nearest(choice.counts, replicas);
    return {std::nullopt,
            fmt::format("the elastic batch {} cannot be divided over {} replicas", choice.batch, replicas),
            near.empty() ? "change micro_batch_sizes, min_gpus or max_gpus"
                         : fmt::format("run {} replicas, or change micro_batch_sizes", near)};
  }
  int64_t micro = 0;
  for (const int64_t size : config.micro_batch_sizes) {
    if (choice.batch / replicas % size == 0) micro = std::max(micro, size);
  }
  if (micro == 0 || choice.batch == 0) {
    return {std::nullopt, fmt::format("no micro-batch divides {} samples a replica", choice.batch / replicas),
            "change micro_batch_sizes"};
  }
  return {BatchConfig{choice.batch, micro, choice.batch / (micro * replicas)}, "", ""};
}

}  // namespace trireme
