#include "engine/trainer/export.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "parsers/model_text.h"

namespace trireme {
namespace {

using checkpoint::HuggingFaceWriter;

// Flat tensors one after another in the scratch, while it lasts.
class Scratch {
 public:
  explicit Scratch(at::Tensor bytes) : bytes_(std::move(bytes)) {}

  at::Tensor Take(int64_t elements, const at::TensorOptions& options) {
    const int64_t size = elements * static_cast<int64_t>(options.dtype().itemsize());
    const int64_t begin = AlignUp(taken_, kAlignment);
    if (!bytes_.defined() || begin + size > bytes_.numel()) return at::empty({elements}, options);
    taken_ = begin + size;
    return bytes_.narrow(0, begin, size).view(c10::typeMetaToScalarType(options.dtype()));
  }

 private:
  static constexpr int64_t kAlignment = 256;
  at::Tensor bytes_;
  int64_t taken_ = 0;
};

// The whole flat buffer of a unit, on every rank.
at::Tensor WholeUnit(const RankState& state, Communicator& dp, int unit, bool masters, Scratch& scratch) {
  const int stage = state.plan().effective_zero_stage;
  if (!masters && stage < 3) return state.weights(unit);
  const at::Tensor kept = masters ? state.OptimizerState(unit, 0) : state.own_weights(unit);
  at::Tensor own = kept;
  if (kept.device() != state.device()) {
    own = scratch.Take(kept.numel(), kept.options().device(state.device()));
    own.copy_(kept);
  }
  if (stage == 0 || dp.size() == 1) return own;
  const at::Tensor whole = scratch.Take(own.numel() * dp.size(), own.options());
  dp.AllGather(own, whole);
  Synchronise(state.device());
  dp.CheckHealth();
  return whole;
}

// The whole flat buffers of a unit's tp ranks, on every rank. With one stage and one tp rank there is nothing to send.
std::vector<at::Tensor> PartsOfUnit(const RankState& state, RankWorld& world, Communicator& dp, int unit, bool masters,
                                    Scratch scratch) {
  const Plan& plan = state.plan();
  const Topology& topology = plan.topology;
  const int holder = plan.PpRankOf(unit);
  const at::Tensor own = state.pp_rank() == holder ? WholeUnit(state, dp, unit, masters, scratch) : at::Tensor();
  if (topology.pp_size * topology.tp_size == 1) return {own};
  const DType dtype = masters ? plan.dtypes.master : plan.dtypes.compute;
  std::vector<at::Tensor> parts;
  for (int tp_rank = 0; tp_rank < topology.tp_size; ++tp_rank) {
    const int root = topology.RankOf({holder, 0, tp_rank});
    parts.push_back(world.rank == root
                        ? own
                        : scratch.Take(plan.units[static_cast<size_t>(unit)].padded_elements,
                                       at::TensorOptions().dtype(ScalarTypeOf(dtype)).device(state.device())));
    world.world->Broadcast(parts.back(), root);
    Synchronise(state.device());
    world.world->CheckHealth();
  }
  return parts;
}

// A segment as the logical tensor has it: without padding, in its own order, in the file's type, on the host. On the
// device it stands once more at most.
at::Tensor Logical(const std::vector<at::Tensor>& parts, const Segment& segment, DType dtype) {
  const ParameterSpec& parameter = segment.parameter;
  const auto held_by = [&](size_t tp_rank) {
    return parts[tp_rank].narrow(0, segment.begin, segment.count).view(parameter.HeldShape());
  };
  const auto without_padding = [&](const at::Tensor& held) {
    return parameter.padded_rows > 0 ? held.narrow(0, 0, std::min(held.size(0), parameter.shape[0])) : held;
  };
  if (!parameter.split() && !parameter.transposed && parts[0].scalar_type() == ScalarTypeOf(dtype)) {
    return without_padding(held_by(0)).cpu();
  }
  const at::Tensor logical = at::empty(parameter.shape, parts[0].options().dtype(ScalarTypeOf(dtype)));
  const at::Tensor held = parameter.transposed ? logical.t() : logical;
  if (!parameter.split()) {
    held.copy_(without_padding(held_by(0)));
    return logical.cpu();
  }
  for (size_t tp_rank = 0; tp_rank < parts.size(); ++tp_rank) {
    int64_t at = 0;
    for (const ParameterSpec::Range& range : parameter.HeldRanges(static_cast<int>(tp_rank))) {
      if (range.extent == 0) continue;  // vocabulary padding alone
      const at::Tensor part = held_by(tp_rank).narrow(parameter.tp_dim, at, range.extent);
      held.narrow(parameter.tp_dim, range.begin, range.extent).copy_(part);
      at += range.extent;
    }
  }
  return logical.cpu();
}

void WriteUnit(HuggingFaceWriter& writer, const UnitLayout& unit, const std::vector<at::Tensor>& parts, DType dtype) {
  for (const Segment& segment : unit.segments) {
    const at::Tensor tensor = Logical(parts, segment, dtype);
    writer.Write(segment.parameter.name, 0,
                 {static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.nbytes())});
  }
}

}  // namespace

void ExportHuggingFace(const RankState& state, RankWorld& world, Communicator& dp, const ExportRequest& request) {
  const Plan& plan = state.plan();
  const bool masters = plan.separate_master && request.dtype != plan.dtypes.compute;
  std::unique_ptr<HuggingFaceWriter> writer;
  std::string failure;
  // What fails on rank 0 is told at the end: until then every rank passes the same collectives.
  const auto attempt = [&](const auto& action) {
    if (world.rank != 0 || !failure.empty()) return;
    try {
      action();
    } catch (const std::exception& error) {
      failure = error.what();
    }
  };
  attempt([&] {
    writer = std::make_unique<HuggingFaceWriter>(request.folder, plan.model, request.dtype, request.max_shard_bytes);
  });
  for (int u = 0; u < state.num_units(); ++u) {
    const std::vector<at::Tensor> parts = PartsOfUnit(state, world, dp, u, masters, Scratch(request.scratch));
    attempt([&] { WriteUnit(*writer, plan.units[static_cast<size_t>(u)], parts, request.dtype); });
  }
  attempt([&] { writer->Commit(HuggingFaceConfig(plan.model, request.dtype), request.companions); });
  const std::string problem = BroadcastText(*world.world, world.device, failure);
  if (problem.empty()) return;
  throw Error(ErrorCode::kCheckpoint, "TRN017", "the model was not exported\n  " + problem, request.folder.string(),
              "free space or name another folder; `trireme convert` exports from a checkpoint of --save");
}

}  // namespace trireme
