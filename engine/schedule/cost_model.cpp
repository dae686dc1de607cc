#include "engine/schedule/cost_model.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"

namespace trireme {
namespace {

int64_t BytesOf(const std::vector<BufferUse>& uses) {
  int64_t bytes = 0;
  for (const BufferUse& use : uses) bytes += use.bytes;
  return bytes;
}

double SplitShare(const DeviceDescription& device, int64_t ranks) {
  for (const SplitEfficiency& split : device.split_efficiency) {
    if (split.ranks == ranks) return split.share;
  }
  return 1;
}

// Tiles of 128 x 256 that fill the multiprocessors in whole rounds.
double Utilisation(int64_t m, int64_t n, int64_t multiprocessors) {
  if (multiprocessors <= 0) return 1;
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t tiles = up(m, 128) * up(n, 256), rounds = up(tiles, multiprocessors);
  const double filled = static_cast<double>(m) * static_cast<double>(n) /
                        (128.0 * 256.0 * static_cast<double>(multiprocessors) * static_cast<double>(rounds));
  return std::sqrt(std::max(0.55, filled));
}

// The measured product nearest in shape, by the ratios of its sizes; null: none of this type.
const MeasuredProduct* Nearest(const std::vector<MeasuredProduct>& products, DType dtype, int64_t m, int64_t n,
                               int64_t k) {
  const auto away = [](int64_t a, int64_t b) {
    const double ratio = std::log(static_cast<double>(a) / static_cast<double>(b));
    return ratio * ratio;
  };
  const MeasuredProduct* nearest = nullptr;
  double least = 0;
  for (const MeasuredProduct& product : products) {
    if (product.dtype != dtype) continue;
    const double distance = away(product.m, m) + away(product.n, n) + away(product.k, k);
    if (nearest == nullptr || distance < least) {
      nearest = &product;
      least = distance;
    }
  }
  return nearest;
}

}  // namespace

CostModel::CostModel(const Plan& plan, const Cluster& cluster)
    : plan_(plan),
      cluster_(cluster),
      placement_(plan, cluster),
      tokens_(static_cast<double>(plan.batch.tokens_per_micro_batch())) {
  int64_t sharing = 0;  // ranks of one pipeline rank on one device: they compute at the same time
  for (int64_t rank = 0; rank < placement_.ranks_per_device(); ++rank) {
    sharing += plan.topology.CoordinateOf(static_cast<int>(rank)).pp_rank == 0;
  }
  // A GPU's rank takes all of it when it is alone; one on the CPU has the threads that the launcher gives it.
  double width = 1;
  if (const int64_t cores = cluster.host.cores; cluster.device.kind == DeviceKind::kCpu && cores > 0) {
    width =
        static_cast<double>(std::max<int64_t>(1, cores / placement_.ranks_per_device())) / static_cast<double>(cores);
  }
  const double wanted = width * static_cast<double>(std::max<int64_t>(sharing, 1));
  share_ = width / std::max(1.0, wanted);
  device_width_ = std::min(1.0, wanted);
  units_.reserve(plan.units.size());
  for (const UnitLayout& unit : plan.units) units_.push_back(SecondsOf(unit));
}

double CostModel::ProductSeconds(int64_t m, int64_t n, int64_t k) const {
  const DeviceDescription& device = cluster_.device;
  const DType dtype = plan_.dtypes.compute;
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const MeasuredProduct* measured = Nearest(device.products, dtype, m, n, k);
  const double rate = measured != nullptr ? measured->flops_per_second
                                          : device.RatesOf(dtype).products * Utilisation(m, n, device.multiprocessors) *
                                                SplitShare(device, plan_.topology.tp_size);
  return flops / (rate * share_) + device.kernel_seconds;
}

double CostModel::ElementwiseSeconds(double bytes) const {
  const double rate = cluster_.device.memory_bytes_per_second * share_;
  return rate > 0 ? bytes / rate : 0;
}

double CostModel::AttentionSeconds(const UnitSpec& spec, bool backward) const {
  if (spec.attention_flops_per_token <= 0) return 0;
  const ComputeRates& rates = cluster_.device.RatesOf(plan_.dtypes.compute);
  const double forward = rates.attention_forward > 0 ? rates.attention_forward : rates.products;
  const double rate = backward && rates.attention_backward > 0 ? rates.attention_backward : forward;
  const double flops = (backward ? 2 : 1) * spec.attention_flops_per_token * tokens_;
  return flops / (rate * share_ * SplitShare(cluster_.device, plan_.topology.tp_size)) + cluster_.device.kernel_seconds;
}

// What a unit's products take in one of their three roles.
double CostModel::ProductsSeconds(const UnitSpec& spec, Role role) const {
  const int64_t all = plan_.batch.tokens_per_micro_batch();
  if (spec.products.empty()) {  // a module of the user's, which says no more than its operations
    const double rate = cluster_.device.RatesOf(plan_.dtypes.compute).products * share_;
    return spec.forward_flops_per_token * tokens_ / rate;
  }
  double seconds = 0;
  for (const ProductSpec& product : spec.products) {
    const int64_t rows = spec.kind == UnitKind::kHead ? HeadChunkTokens(all, product.out) : all;
    const double pieces = static_cast<double>(all) / static_cast<double>(rows);
    seconds += pieces * (role == Role::kForward ? ProductSeconds(rows, product.out, product.in)
                         : role == Role::kInput ? ProductSeconds(rows, product.in, product.out)
                                                : ProductSeconds(product.out, product.in, rows));
  }
  return seconds;
}

// What makes a block's output, which a recomputation leaves out: the MLP's second product, the last of the list; where
// the MLP does not read the attention's, that one too, the second.
double CostModel::OutputSeconds(const UnitSpec& spec) const {
  if (spec.kind != UnitKind::kBlock || spec.products.size() != 4) return 0;
  const auto product = [&](size_t i) {
    return ProductSeconds(plan_.batch.tokens_per_micro_batch(), spec.products[i].out, spec.products[i].in);
  };
  return product(3) + (plan_.model.parallel_residual ? product(1) : 0);
}

// Compute and the unit's own collectives; those that are hidden run beside `hiding` seconds of products.
InstructionCost CostModel::Total(double compute, double hiding, const std::vector<CollectiveSpec>& collectives) const {
  double plain = 0, hidden = 0;
  for (const CollectiveSpec& collective : collectives) {
    const Collective kind = collective.kind == CollectiveSpec::Kind::kAllReduce   ? Collective::kAllReduce
                            : collective.kind == CollectiveSpec::Kind::kAllGather ? Collective::kAllGather
                                                                                  : Collective::kReduceScatter;
    const double bytes = static_cast<double>(collective.bytes_per_token) * tokens_;
    (collective.hidden ? hidden : plain) += placement_.Seconds(Group::kTp, kind, bytes);
  }
  const double exposed = plain + std::max(0.0, hidden - cluster_.overlap.tensor_parallel * hiding);
  return {compute + exposed, exposed};
}

UnitSeconds CostModel::SecondsOf(const UnitLayout& unit) const {
  const UnitSpec& spec = unit.spec;
  const double factor = cluster_.device.engine_factor;
  const auto elementwise = [&](double bytes) { return ElementwiseSeconds(bytes * tokens_); };
  double forward = ProductsSeconds(spec, Role::kForward) + AttentionSeconds(spec, /*backward=*/false) +
                   elementwise(spec.elementwise.forward);
  double input = ProductsSeconds(spec, Role::kInput) + AttentionSeconds(spec, /*backward=*/true) +
                 elementwise(spec.elementwise.backward_input);
  const double weights = ProductsSeconds(spec, Role::kWeight);
  const double weight = weights + elementwise(spec.elementwise.backward_weight);
  if (unit.recompute == Recompute::kCheap) input += elementwise(spec.elementwise.remade);
  if (spec.kind == UnitKind::kHead) {
    forward += input + weight;
    input = 0;
  }
  std::vector<CollectiveSpec> both = spec.collectives.backward_input;
  both.insert(both.end(), spec.collectives.backward_weight.begin(), spec.collectives.backward_weight.end());
  const double hiding = weights * factor;
  UnitSeconds seconds;
  seconds.forward = Total(forward * factor, 0, spec.collectives.forward);
  seconds.recompute = Total((forward - OutputSeconds(spec)) * factor, 0, spec.collectives.recompute);
  seconds.backward = Total((input + weight) * factor, hiding, both);
  seconds.backward_input = Total(input * factor, hiding, spec.collectives.backward_input);
  seconds.backward_weight = Total(weight * factor, hiding, spec.collectives.backward_weight);
  return seconds;
}

double CostModel::ElementsOf(const UnitRange& units, bool own) const {
  int64_t elements = 0;
  for (int unit = units.first; unit <= units.last; ++unit) {
    elements += own ? plan_.OwnElements(unit) : plan_.units[static_cast<size_t>(unit)].padded_elements;
  }
  return static_cast<double>(elements);
}

// Every state is read and written once, the gradient is read, the weights are written. Where an update on the host is
// of weights on the device their copy reads them once more, at the expense of the next unit's update.
double CostModel::UpdateSeconds(const Instruction& instruction) const {
  const int unit = instruction.units.first;
  const double states = plan_.moments_per_element + (plan_.HasMaster(unit) ? 1 : 0);
  const double state_bytes = 2 * states * static_cast<double>(SizeOf(plan_.dtypes.master));
  const double elements = ElementsOf(instruction.units, /*own=*/true);
  const double bytes =
      elements * (state_bytes + static_cast<double>(SizeOf(plan_.dtypes.accumulate) + SizeOf(plan_.dtypes.compute)));
  if (instruction.lane != Lane::kCpu) {
    const double rate = cluster_.device.update_bytes_per_second * share_;
    return (rate > 0 ? bytes / rate : ElementwiseSeconds(bytes)) + cluster_.device.kernel_seconds;
  }
  const auto ranks = static_cast<double>(placement_.ranks_per_node());
  const double update = cluster_.host.update_bytes_per_second,
               memory = update > 0 ? update : cluster_.host.MemoryBytesPerSecond();
  const double copied = plan_.weights_on_host ? 0 : elements * static_cast<double>(SizeOf(plan_.dtypes.compute));
  double seconds = memory > 0 ? (bytes + copied) * ranks / memory : 0;
  if (plan_.optimizer_on_disk && cluster_.disk.read_bytes_per_second > 0 && cluster_.disk.write_bytes_per_second > 0) {
    const double each_way = elements * state_bytes / 2 * ranks;
    seconds = std::max(
        seconds, each_way / cluster_.disk.read_bytes_per_second + each_way / cluster_.disk.write_bytes_per_second);
  }
  return seconds;
}

double CostModel::CollectiveSeconds(const CompiledInstruction& compiled) const {
  const Instruction& instruction = compiled.instruction;
  const double elements = ElementsOf(instruction.units, /*own=*/false);
  switch (instruction.op) {
    case Op::kGather:
      return placement_.Seconds(Group::kDp, Collective::kAllGather,
                                elements * static_cast<double>(SizeOf(plan_.dtypes.compute)));
    case Op::kReduce:
      return placement_.Seconds(Group::kDp,
                                plan_.effective_zero_stage == 0 ? Collective::kAllReduce : Collective::kReduceScatter,
                                elements * static_cast<double>(SizeOf(plan_.dtypes.communicate)));
    case Op::kTieReduce:
      return placement_.Seconds(
          Group::kTie, Collective::kAllReduce,
          ElementsOf(instruction.units, true) * static_cast<double>(SizeOf(plan_.dtypes.accumulate)));
    case Op::kTpReduce: {
      int64_t whole = 0;
      for (int u = instruction.units.first; u <= instruction.units.last; ++u) {
        for (const Segment& segment : plan_.units[static_cast<size_t>(u)].segments) {
          if (!segment.parameter.split()) whole += segment.count;
        }
      }
      return placement_.Seconds(Group::kTp, Collective::kAllReduce,
                                static_cast<double>(whole * SizeOf(plan_.dtypes.accumulate)));
    }
    case Op::kTpGather:
      return placement_.Seconds(Group::kTp, Collective::kAllGather, static_cast<double>(BytesOf(compiled.writes)));
    default:  // sums of a few numbers
      return placement_.Seconds(instruction.group, Collective::kAllReduce, 256);
  }
}

double CostModel::CopySeconds(const CompiledInstruction& compiled) const {
  if (CopiesState(compiled.instruction)) return 0;
  const HostLinkDescription& link = cluster_.host_link;
  const double rate =
      (compiled.instruction.lane == Lane::kUp ? link.up_bytes_per_second : link.down_bytes_per_second) * share_;
  const double bytes = static_cast<double>(BytesOf(compiled.writes));
  return rate > 0 ? link.latency_seconds + bytes / rate : 0;
}

InstructionCost CostModel::Of(int pp_rank, const CompiledInstruction& compiled) const {
  const Instruction& instruction = compiled.instruction;
  const auto alone = [](double seconds) { return InstructionCost{seconds, 0}; };
  const auto of_unit = [&]() -> const UnitSeconds& { return OfUnit(instruction.units.first); };
  switch (instruction.op) {
    case Op::kForward:
      return of_unit().forward;
    case Op::kRecompute:  // within a segment the next layer reads the output
      return plan_.units[static_cast<size_t>(instruction.units.first)].segment.last == instruction.units.first
                 ? of_unit().recompute
                 : of_unit().forward;
    case Op::kBackward:
      return of_unit().backward;
    case Op::kBackwardInput:
      return of_unit().backward_input;
    case Op::kBackwardWeight:
      return of_unit().backward_weight;
    case Op::kSend:
      return alone(placement_.TransferSeconds(pp_rank, instruction.peer, static_cast<double>(compiled.reads[0].bytes)));
    case Op::kRecv:
      return alone(
          placement_.TransferSeconds(instruction.peer, pp_rank, static_cast<double>(BytesOf(compiled.writes))));
    case Op::kTpReduce:
    case Op::kTpGather: {
      const double seconds = CollectiveSeconds(compiled);
      return {seconds, seconds};
    }
    case Op::kStepStats:
      if (instruction.lane == Lane::kDp) return alone(CollectiveSeconds(compiled));
      return alone(ElementwiseSeconds(static_cast<double>(BytesOf(compiled.reads))) + cluster_.device.step_seconds);
    case Op::kReduceNorms: {
      const double seconds = CollectiveSeconds(compiled);
      return {seconds, instruction.lane == Lane::kCompute ? seconds : 0};
    }
    case Op::kGather:
    case Op::kReduce:
    case Op::kTieReduce:
      return alone(CollectiveSeconds(compiled));
    case Op::kUpdateNorms:
    case Op::kUpdate:
      return alone(UpdateSeconds(instruction));
    case Op::kTpSplit:
      return alone(ElementwiseSeconds(2 * static_cast<double>(BytesOf(compiled.writes))));
    case Op::kCopyDown:
    case Op::kCopyUp:
      return alone(CopySeconds(compiled));
    case Op::kLoad:
    case Op::kRelease:
      break;
  }
  return {};
}

SimulationCosts CostModel::Costs() const {
  SimulationCosts costs;
  costs.cost = [this](int pp_rank, const CompiledInstruction& compiled) { return Of(pp_rank, compiled); };
  const OverlapDescription& overlap = cluster_.overlap;
  const double slowdown = 1 / (1 + cluster_.device.communication_slowdown);
  costs.speeds.compute_beside_collectives = overlap.data_parallel * slowdown;
  costs.speeds.compute_beside_transfers = overlap.pipeline;
  const HostLinkDescription& link = cluster_.host_link;
  if (link.up_duplex_bytes_per_second > 0) {
    costs.speeds.up_beside_down = link.up_duplex_bytes_per_second / link.up_bytes_per_second;
  }
  if (link.down_duplex_bytes_per_second > 0) {
    costs.speeds.down_beside_up = link.down_duplex_bytes_per_second / link.down_bytes_per_second;
  }
  if (placement_.ranks_per_device() == 1) return costs;
  costs.speeds.device_width = device_width_;
  for (int pp = 0; pp < plan_.topology.pp_size; ++pp) {
    costs.speeds.devices.push_back(static_cast<int>(placement_.DeviceOf(plan_.topology.RankOf({pp, 0, 0}))));
  }
  return costs;
}

}  // namespace trireme
