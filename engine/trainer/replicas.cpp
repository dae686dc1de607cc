#include "engine/trainer/replicas.h"

#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"

namespace trireme {
namespace {

// The finalizer of SplitMix64 (Steele et al., OOPSLA 2014): a change of any bit reaches those that are kept.
uint64_t Mixed(uint64_t sum) {
  sum = (sum ^ (sum >> 30)) * 0xBF58476D1CE4E5B9ull;
  sum = (sum ^ (sum >> 27)) * 0x94D049BB133111EBull;
  return sum ^ (sum >> 31);
}

}  // namespace

// Classes are numbered by unit, tensor, tensor-parallel part and shard, on every rank alike.
ReplicaCheck::ReplicaCheck(const RankState& state, RankWorld& world) : state_(state), world_(world) {
  const Plan& plan = state.plan();
  const int shards = plan.effective_zero_stage == 3 ? plan.topology.dp_size : 1;
  for (int u = 0; u < plan.num_units(); ++u) {
    const bool tied = u == 0 && plan.tied_across_stages();
    const at::Tensor& weights = state.weights(u);
    const int64_t begin = shards > 1 ? state.own_begin(u) : 0, end = begin + (weights.defined() ? weights.numel() : 0);
    for (const Segment& segment : plan.units[static_cast<size_t>(u)].segments) {
      // What tp does not split is reduced over dp by a group of each tp rank: sums of more than two may round apart.
      const bool apart = segment.parameter.split() || plan.topology.dp_size > 2;
      const int copies =
          (shards > 1 ? 1 : plan.topology.dp_size) * (apart ? 1 : plan.topology.tp_size) * (tied ? 2 : 1);
      if (copies == 1) continue;
      const int64_t first = std::max(begin, segment.begin), last = std::min(end, segment.begin + segment.count);
      if (first < last) {
        const int64_t part = (apart ? state.tp_rank() : 0) * shards + (shards > 1 ? state.dp_rank() : 0);
        parts_.push_back({u, &segment, weights.narrow(0, first - begin, last - first), num_classes_ + part});
      }
      num_classes_ += (apart ? plan.topology.tp_size : 1) * shards;
    }
  }
}

// Weights may lie on the host beside a run on a device (offloaded parameters): each is summed where it is.
std::vector<int64_t> ReplicaCheck::Checksums() const {
  const auto count = static_cast<int64_t>(parts_.size());
  const at::Tensor there = at::zeros({count}, at::TensorOptions().dtype(at::kLong).device(world_.device)),
                   here = at::zeros({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor& weights = parts_[static_cast<size_t>(i)].weights;
    kernels::Checksum(weights, (weights.device() == there.device() ? there : here).narrow(0, i, 1));
  }
  const at::Tensor sums = at::add(there.cpu(), here);
  const auto* values = sums.const_data_ptr<int64_t>();
  return {values, values + count};
}

void ReplicaCheck::Compare(int64_t step) {
  if (!any()) return;
  // 52 mixed bits of each are exact in a double; the largest over the ranks of it and of its negative tell whether all
  // agree.
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  const auto exact = [](int64_t sum) { return static_cast<double>(Mixed(static_cast<uint64_t>(sum)) >> 12); };
  const std::vector<int64_t> mine = Checksums();
  at::Tensor bounds = at::full({2, num_classes_}, kNothing, at::kDouble);
  double* values = bounds.mutable_data_ptr<double>();
  for (size_t i = 0; i < parts_.size(); ++i) {
    values[parts_[i].index] = exact(mine[i]);
    values[num_classes_ + parts_[i].index] = -exact(mine[i]);
  }
  bounds = bounds.to(world_.device);
  Synchronise(world_.device);
  world_.world->AllReduce(bounds, ReduceOp::kMax);
  Synchronise(world_.device);
  world_.world->CheckHealth();
  bounds = bounds.cpu();
  values = bounds.mutable_data_ptr<double>();
  int64_t first = -1, different = 0;
  for (int64_t i = 0; i < num_classes_; ++i) {
    if (values[i] == kNothing || values[i] == -values[num_classes_ + i]) continue;
    if (different++ == 0) first = i;
  }
  if (different > 0) Fail(step, first, different, mine);
}

void ReplicaCheck::Fail(int64_t step, int64_t index, int64_t different, const std::vector<int64_t>& mine) const {
  std::string text;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].index != index) continue;
    text = fmt::format("{:016x}{} of {}", Mixed(static_cast<uint64_t>(mine[i])), parts_[i].segment->parameter.name,
                       state_.plan().units[static_cast<size_t>(parts_[i].unit)].spec.name);
  }
  const std::vector<std::string> texts = GatherTexts(*world_.world, world_.device, text);
  std::map<std::string, std::vector<int>> ranks;
  std::string tensor;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    ranks[texts[rank].substr(0, 16)].push_back(static_cast<int>(rank));
    tensor = texts[rank].substr(16);
  }
  std::string groups;
  for (const auto& [sum, holders] : ranks)
    groups += fmt::format("{}{} on ranks {}", groups.empty() ? "" : ", ", sum, fmt::join(holders, " "));
  throw Error(ErrorCode::kCheckFailed, "TRN050",
              fmt::format("{} must be equal on all ranks that hold it, and its checksum is {} ({} of {} shared tensors "
                          "differ)",
                          tensor, groups, different, num_classes_),
              fmt::format("after {} steps", step),
              "resume from the last checkpoint, which was compared before it was written; if it happens again on the "
              "same rank, test the memory of its device");
}

// What lies on several ranks counts at the first of them; at ZeRO 0 each data-parallel rank counts its share.
void RequireAllParameters(const RankState& state, RankWorld& world) {
  const Plan& plan = state.plan();
  int64_t mine = 0;
  for (const OwnedSlice& slice : state.OwnedSlices()) {
    const bool elsewhere = state.IsTiedCopy(slice.unit) || (!slice.segment->parameter.split() && state.tp_rank() > 0);
    if (elsewhere) continue;
    ElementRange counted{slice.own_begin, slice.own_begin + slice.count};
    if (plan.effective_zero_stage == 0) {
      const ElementRange share = plan.units[static_cast<size_t>(slice.unit)].Shard(state.dp_rank());
      counted = {std::max(counted.begin, share.begin), std::min(counted.end, share.end)};
    }
    mine += std::max<int64_t>(0, counted.size());
  }
  const double all = SumOver(*world.world, world.device, static_cast<double>(mine));
  if (all == static_cast<double>(plan.num_parameters)) return;
  throw Error(ErrorCode::kCheckFailed, "TRN051",
              fmt::format("the ranks own {} parameters in all, and the model has {}", all, plan.num_parameters),
              fmt::format("{} stages", plan.num_stages()),
              "this is a mistake of this program: please report the config");
}

}  // namespace trireme
