#include "engine/zero/rank_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/zero/host_memory.h"

namespace trireme {
namespace {

uint64_t StreamOf(std::string_view name) {  // FNV-1a: the stream of a tensor's random numbers depends on its name alone
  uint64_t hash = 14695981039346656037ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

// Runs of equal decay over [begin, begin + count) of a unit; padding belongs to the run before it (it holds zeros).
std::vector<DecayRun> MakeDecayRuns(const UnitLayout& unit, int64_t begin, int64_t count) {
  std::vector<DecayRun> runs;
  int64_t at = begin;
  for (size_t s = 0; s < unit.segments.size(); ++s) {
    const int64_t end = s + 1 < unit.segments.size() ? unit.segments[s + 1].begin : unit.padded_elements;
    const int64_t stop = std::min(end, begin + count);
    if (stop <= at) continue;
    const bool decay = unit.segments[s].parameter.decay;
    if (!runs.empty() && runs.back().decay == decay) {
      runs.back().count += stop - at;
    } else {
      runs.push_back({at - begin, stop - at, decay});
    }
    at = stop;
  }
  return runs;
}

std::vector<TensorRun> MakeTensorRuns(const UnitLayout& unit, int tp_rank, int64_t begin, int64_t count) {
  std::vector<TensorRun> runs;
  for (size_t s = 0; s < unit.segments.size(); ++s) {
    const Segment& segment = unit.segments[s];
    const int64_t first = std::max(segment.begin, begin), last = std::min(segment.begin + segment.count, begin + count);
    if (first >= last) continue;
    runs.push_back({first - begin, last - first, segment.parameter.decay, static_cast<int64_t>(s),
                    segment.parameter.split() || tp_rank == 0});
  }
  return runs;
}

// Of the segments that are split over tp, or of those that are not, what lies in `of`; counted from `begin`.
std::vector<ElementRange> RangesOf(const UnitLayout& unit, bool split, const ElementRange& of, int64_t begin) {
  std::vector<ElementRange> ranges;
  for (const Segment& segment : unit.segments) {
    if (segment.parameter.split() != split) continue;
    const ElementRange part{std::max(segment.begin, of.begin), std::min(segment.begin + segment.count, of.end)};
    if (part.size() > 0) ranges.push_back({part.begin - begin, part.end - begin});
  }
  return ranges;
}

// See RankState::norm_ranges. Gaps between segments hold zeros: they may count anywhere.
std::vector<ElementRange> MakeNormRanges(const Plan& plan, const UnitLayout& unit, const Topology::Coordinate& place,
                                         int64_t begin, int64_t count) {
  ElementRange counted{begin, begin + count};
  if (plan.effective_zero_stage == 0 && plan.topology.dp_size > 1) counted = unit.Shard(place.dp_rank);
  if (place.tp_rank == 0) return {{counted.begin - begin, counted.end - begin}};
  return RangesOf(unit, /*split=*/true, counted, begin);
}

// Converts; between device and host one unit at a time stands twice.
void CopyBetween(const at::Tensor& source, const at::Tensor& destination) {
  if (source.device() == destination.device()) {
    kernels::CastCopy(source, destination);
  } else if (source.is_cuda()) {
    kernels::CastCopy(source.cpu(), destination);
  } else {
    destination.copy_(source.to(destination.scalar_type()));
  }
}

// Elements of a segment that are no vocabulary padding, which comes last.
int64_t LogicalElements(const Segment& segment, int tp_rank) {
  const std::vector<HeldRun> runs = HeldRuns(segment.parameter, tp_rank);
  return runs.empty() ? 0 : runs.back().held_begin + runs.back().count;
}

}  // namespace

RankState::RankState(const Plan& plan, int rank, at::Device device, Use use, const StateFiles& files,
                     std::shared_ptr<RankMemory> memory)
    : plan_(plan),
      place_(plan.topology.CoordinateOf(rank)),
      held_units_(plan.UnitsOf(place_.pp_rank)),
      device_(device),
      memory_(memory != nullptr ? std::move(memory) : std::make_shared<RankMemory>(device, RankMemoryOptions{})),
      weights_(plan.units.size()),
      own_weights_(plan.units.size()),
      masters_(plan.units.size()),
      gradients_(plan.units.size()),
      own_gradients_(plan.units.size()),
      host_gradients_(plan.units.size()),
      moments_(plan.units.size()),
      decay_runs_(plan.units.size()),
      tensor_runs_(plan.units.size()),
      update_norms_(plan.units.size()),
      norm_ranges_(plan.units.size()),
      copied_ranges_(plan.units.size()) {
  const int stage = plan.effective_zero_stage;
  if (plan.optimizer_on_disk) file_ = std::make_unique<OptimizerFile>(plan, rank, files.optimizer);
  for (const int u : held_units_) {
    const size_t at = static_cast<size_t>(u);
    const UnitLayout& unit = plan.units[static_cast<size_t>(u)];
    const int64_t begin = own_begin(u), own = own_elements(u);
    const bool whole_weights = stage < 3, whole_gradients = stage < 2;
    const bool on_host = plan.OptimizerOnHost(u);
    weights_[at] = plan.weights_on_disk ? FileFlat(own, ScalarTypeOf(plan.dtypes.compute), files.weights)
                                        : Flat(MemoryClass::kWeights, whole_weights ? unit.padded_elements : own,
                                               plan.dtypes.compute, plan.weights_on_host);
    own_weights_[at] = whole_weights ? weights_[at].narrow(0, begin, own) : weights_[at];
    if (!OnDisk(u, 0)) {
      masters_[at] =
          plan.HasMaster(u) ? Flat(MemoryClass::kMasterWeights, own, plan.dtypes.master, on_host) : own_weights_[at];
    }
    decay_runs_[at] = MakeDecayRuns(unit, begin, own);
    tensor_runs_[at] = MakeTensorRuns(unit, place_.tp_rank, begin, own);
    if (!IsTiedCopy(u)) norm_ranges_[at] = MakeNormRanges(plan, unit, place_, begin, own);
    if (place_.tp_rank > 0) copied_ranges_[at] = RangesOf(unit, /*split=*/false, {begin, begin + own}, begin);
    if (use == Use::kWeightsOnly) continue;
    gradients_[at] = Flat(MemoryClass::kGradients, whole_gradients ? unit.padded_elements : own, plan.dtypes.accumulate,
                          /*on_host=*/false);
    if (on_host) host_gradients_[at] = Flat(MemoryClass::kGradients, own, plan.dtypes.accumulate, on_host);
    own_gradients_[at] = whole_gradients ? gradients_[at].narrow(0, begin, own) : gradients_[at];
    for (int k = 0; file(u) == nullptr && k < plan.moments_per_element; ++k)
      moments_[at].push_back(Flat(MemoryClass::kMoments, own, plan.dtypes.master, on_host));
    if (!plan.trust_ratios) continue;
    const auto tensors = static_cast<int64_t>(unit.segments.size());
    update_norms_[at] = Flat(MemoryClass::kMoments, 2 * tensors, DType::kFloat64, /*on_host=*/false).view({tensors, 2});
  }
  step_state_ = at::zeros({kStepStateSize}, at::TensorOptions().dtype(at::kDouble).device(device));
  kernels::InitStepState(step_state_, /*loss_scale=*/1);
}

at::Tensor RankState::Flat(MemoryClass memory_class, int64_t elements, DType dtype, bool on_host) const {
  if (on_host) return memory_->OnHost(memory_class, elements, ScalarTypeOf(dtype), plan_.pin_memory);
  return memory_->OnDevice(memory_class, elements, ScalarTypeOf(dtype));
}

int64_t RankState::own_begin(int u) const {
  return plan_.effective_zero_stage == 0 ? 0 : place_.dp_rank * plan_.units[static_cast<size_t>(u)].shard_elements;
}

int64_t RankState::own_elements(int u) const {
  const UnitLayout& unit = plan_.units[static_cast<size_t>(u)];
  return plan_.effective_zero_stage == 0 ? unit.padded_elements : unit.shard_elements;
}

void RankState::InitialiseWeights(uint64_t seed) {
  for (const int u : held_units_) {
    const UnitLayout& unit = plan_.units[static_cast<size_t>(u)];
    const at::Tensor& weights = weights_[static_cast<size_t>(u)];
    const int64_t held =
        weights.numel() == unit.padded_elements ? 0 : own_begin(u);  // first flat element that lies here
    for (const Segment& segment : unit.segments) {
      const ParameterSpec& parameter = segment.parameter;
      for (const HeldRun& run : HeldRuns(parameter, place_.tp_rank)) {
        const int64_t first = segment.begin + run.held_begin;
        const int64_t begin = std::max(first, held), end = std::min(first + run.count, held + weights.numel());
        if (begin >= end) continue;
        const at::Tensor part = weights.narrow(0, begin - held, end - begin);
        switch (parameter.init) {
          case Init::kZeros:
            part.zero_();
            break;
          case Init::kOnes:
            part.fill_(1);
            break;
          case Init::kGiven:
            break;
          case Init::kNormal:
            kernels::InitNormal(part, seed, StreamOf(parameter.name), run.whole_begin + (begin - first), 1, 0,
                                parameter.init_std);
            break;
        }
      }
    }
  }
  SetMastersFromWeights();
}

void RankState::SetMastersFromWeights() {
  for (const int u : held_units_) {
    if (!plan_.HasMaster(u)) continue;
    const at::Tensor masters = OnDisk(u, 0) ? at::empty({own_elements(u)}, ScalarTypeOf(plan_.dtypes.master))
                                            : masters_[static_cast<size_t>(u)];
    CopyBetween(own_weights(u), masters);
    SetOptimizerState(u, 0, masters);
  }
}

void RankState::SetWeightsFromMasters() {
  for (const int u : held_units_) {
    if (plan_.HasMaster(u)) CopyBetween(OptimizerState(u, 0), own_weights(u));
  }
}

at::Tensor RankState::OptimizerState(int u, int state) const {
  if (OnDisk(u, state)) return file(u)->Read(u, state - (plan_.HasMaster(u) ? 0 : 1));
  return state == 0 ? masters(u) : moment(u, state - 1);
}

void RankState::SetOptimizerState(int u, int state, const at::Tensor& values) const {
  if (OnDisk(u, state)) file(u)->Write(u, state - (plan_.HasMaster(u) ? 0 : 1), values);
}

std::vector<OwnedSlice> RankState::OwnedSlices() const {
  std::vector<OwnedSlice> slices;
  for (const int u : held_units_) {
    const int64_t first = own_begin(u), last = first + own_elements(u);
    for (const Segment& segment : plan_.units[static_cast<size_t>(u)].segments) {
      const int64_t logical = LogicalElements(segment, place_.tp_rank);
      const int64_t begin = std::max(segment.begin, first), end = std::min(segment.begin + logical, last);
      if (begin < end) slices.push_back({u, &segment, begin - segment.begin, end - begin, begin - first});
    }
  }
  return slices;
}

int64_t RankState::allocated_bytes() const { return static_cast<int64_t>(step_state_.nbytes()) + Bytes(false); }
int64_t RankState::host_bytes() const { return Bytes(true); }

int64_t RankState::Bytes(bool on_host) const {
  int64_t bytes = 0;
  const auto add = [&](bool here, const at::Tensor& tensor) {
    if (here == on_host && tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  };
  for (const int u : held_units_) {
    const size_t at = static_cast<size_t>(u);
    const bool updated_on_host = plan_.OptimizerOnHost(u);
    if (!plan_.weights_on_disk) add(plan_.weights_on_host, weights_[at]);
    add(false, gradients_[at]);
    add(true, host_gradients_[at]);
    if (plan_.HasMaster(u)) add(updated_on_host, masters_[at]);
    for (const at::Tensor& moment : moments_[at]) add(updated_on_host, moment);
    add(false, update_norms_[at]);
  }
  return bytes;
}

}  // namespace trireme
