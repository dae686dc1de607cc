#include "engine/trainer/export.h"

#include <ATen/ops/empty.h>

#include <memory>
#include <span>
#include <string>

#include "engine/base/error.h"
#include "parsers/model_text.h"

namespace trireme {
namespace {

using checkpoint::HuggingFaceWriter;

// The whole flat buffer of a unit, on every rank.
at::Tensor WholeUnit(const RankState& state, Communicator& dp, int unit, bool masters) {
  const int stage = state.plan().effective_zero_stage;
  if (!masters && stage < 3) return state.weights(unit);
  const at::Tensor& own = masters ? state.masters(unit) : state.own_weights(unit);
  if (stage == 0) return own;
  const at::Tensor whole = at::empty({own.numel() * dp.size()}, own.options());
  dp.AllGather(own, whole);
  Synchronise(state.device());
  dp.CheckHealth();
  return whole;
}

// A segment as the logical tensor has it: without padding, in its own order, in the file's type, on the host.
at::Tensor Logical(const at::Tensor& flat, const Segment& segment, DType dtype) {
  const ParameterSpec& parameter = segment.parameter;
  at::Tensor held = flat.narrow(0, segment.begin, segment.count).view(parameter.HeldShape());
  if (parameter.padded_rows > 0) held = held.narrow(0, 0, parameter.shape[0]);
  if (parameter.transposed) held = held.t();
  return held.to(ScalarTypeOf(dtype)).contiguous().cpu();
}

void WriteUnit(HuggingFaceWriter& writer, const UnitLayout& unit, const at::Tensor& flat, DType dtype) {
  for (const Segment& segment : unit.segments) {
    const at::Tensor tensor = Logical(flat, segment, dtype);
    writer.Write(segment.parameter.name, 0,
                 {static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.nbytes())});
  }
}

}  // namespace

void ExportHuggingFace(const RankState& state, RankWorld& world, const ExportRequest& request) {
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
    const at::Tensor flat = WholeUnit(state, *world.dp, u, masters);
    attempt([&] { WriteUnit(*writer, plan.units[static_cast<size_t>(u)], flat, request.dtype); });
  }
  attempt([&] { writer->Commit(HuggingFaceConfig(plan.model, request.dtype), request.companions); });
  const std::string problem = BroadcastText(*world.dp, world.device, failure);
  if (problem.empty()) return;
  throw Error(ErrorCode::kCheckpoint, "TRN017", "the model was not exported\n  " + problem, request.folder.string(),
              "free space or name another folder; `trireme convert` exports from a checkpoint of --save");
}

}  // namespace trireme
