#include "engine/trainer/checkpointing.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isinf.h>
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "checkpoint/convert.h"
#include "checkpoint/file_io.h"
#include "checkpoint/writer.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/plan/families/family.h"
#include "engine/zero/update.h"

namespace trireme {
namespace {

using checkpoint::CheckpointReader;
using checkpoint::Order;

struct SavedState {
  const char* name;
  DType dtype;
};

std::vector<SavedState> StatesOf(const Plan& plan, const OptimizerConfig& optimizer) {
  std::vector<SavedState> states = {{"master", plan.dtypes.master}};
  for (const char* moment : MomentNames(optimizer)) states.push_back({moment, plan.dtypes.master});
  return states;
}

// The part of the logical tensor that a tp rank holds, in the order in which it holds it, and in that the slice.
checkpoint::Region RegionOf(const OwnedSlice& slice, int tp_rank) {
  const ParameterSpec& parameter = slice.segment->parameter;
  checkpoint::Region region;
  region.flat_begin = slice.held_begin;
  region.flat_count = slice.count;
  region.order = parameter.transposed ? Order::kTransposed : Order::kRowMajor;
  if (!parameter.split()) return region;
  const size_t held_dim = static_cast<size_t>(parameter.tp_dim);
  const size_t dim = parameter.transposed ? parameter.shape.size() - 1 - held_dim : held_dim;
  for (const ParameterSpec::Range& range : parameter.HeldRanges(tp_rank)) {
    if (range.extent == 0) continue;
    checkpoint::Box box{std::vector<int64_t>(parameter.shape.size(), 0), parameter.shape};
    box.begin[dim] = range.begin;
    box.extent[dim] = range.extent;
    region.boxes.push_back(std::move(box));
  }
  return region;
}

// Where every rank has everything, each saves its share of the units; else each saves its shard.
bool Saves(const RankState& state, int unit) {
  const Topology& topology = state.plan().topology;
  if (state.IsTiedCopy(unit)) return false;
  return state.plan().effective_zero_stage > 0 || unit % topology.dp_size == state.dp_rank();
}

void AddParts(checkpoint::RankWriter& writer, const RankState& state, const OptimizerConfig& optimizer) {
  const std::vector<SavedState> states = StatesOf(state.plan(), optimizer);
  std::vector<std::vector<checkpoint::PartSlab>> slabs(static_cast<size_t>(state.num_units()));
  for (const OwnedSlice& slice : state.OwnedSlices()) {
    if (state.tp_rank() > 0 && !slice.segment->parameter.split()) continue;  // the first tp rank saves it
    checkpoint::PartSlab slab;
    slab.tensor = slice.segment->parameter.name;
    slab.shape = slice.segment->parameter.shape;
    slab.region = RegionOf(slice, state.tp_rank());
    slab.elem_offset = slice.own_begin;
    slabs[static_cast<size_t>(slice.unit)].push_back(std::move(slab));
  }
  for (size_t s = 0; s < states.size(); ++s) {
    for (const int u : state.held_units()) {
      if (!Saves(state, u)) continue;
      // What is on a disk is read once a unit, and kept while the unit is written.
      const auto flat = std::make_shared<at::Tensor>();
      const auto fill = [flat, &state, u, s](int64_t byte_begin, std::span<std::byte> out) {
        if (!flat->defined()) *flat = state.OptimizerState(u, static_cast<int>(s));
        const int64_t count = static_cast<int64_t>(out.size());
        const at::Tensor bytes = flat->view(at::kByte).narrow(0, byte_begin, count).cpu();
        std::copy_n(static_cast<const std::byte*>(bytes.const_data_ptr()), out.size(), out.data());
        if (byte_begin + count == static_cast<int64_t>(flat->nbytes())) flat->reset();
      };
      writer.AddPart(states[s].name, states[s].dtype, state.own_elements(u), fill, slabs[static_cast<size_t>(u)]);
    }
  }
}

checkpoint::CheckpointMetadata MetadataOf(const RankState& state, const OptimizerConfig& optimizer,
                                          const SaveRequest& request) {
  const Plan& plan = state.plan();
  checkpoint::CheckpointMetadata metadata;
  metadata.topology.world = plan.topology.world_size();
  metadata.topology.dp = plan.topology.dp_size;
  metadata.topology.zero_stage = plan.zero_stage;
  metadata.topology.pp = plan.topology.pp_size;
  metadata.topology.tp = plan.topology.tp_size;
  for (int rank = 0; rank < plan.topology.world_size(); ++rank) {
    const Topology::Coordinate at = plan.topology.CoordinateOf(rank);
    metadata.topology.ranks.push_back({at.pp_rank, at.dp_rank, at.tp_rank, 0, 0});
  }
  metadata.model_config = request.model_config;
  metadata.optimizer = request.optimizer;
  metadata.trainer_state = request.trainer_state;
  metadata.data_position = request.data_position;
  metadata.run_config = request.run_config;
  for (const SavedState& saved : StatesOf(plan, optimizer)) metadata.required_states.emplace_back(saved.name);
  for (const UnitLayout& unit : plan.units) {
    for (const Segment& segment : unit.segments) {
      metadata.parameter_order.push_back(segment.parameter.name);
      if (!segment.parameter.decay) metadata.parameters[segment.parameter.name].group = 1;
    }
  }
  if (plan.model.tie_word_embeddings) {
    const FamilyTraits& traits = TraitsOf(plan.model.family);
    metadata.parameters[std::string(traits.head) + ".weight"].alias_of = std::string(traits.token_table) + ".weight";
  }
  return metadata;
}

// This rank's file, or why there is none. Every rank passes the same collectives, whatever fails on it.
checkpoint::RankFileSummary WriteRankFile(const RankState& state, const OptimizerConfig& optimizer, RankWorld& world,
                                          const SaveRequest& request, const checkpoint::Uuid& uuid) {
  std::unique_ptr<checkpoint::RankWriter> writer;
  std::string failure;
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (const std::exception& error) {
      failure = error.what();
    }
  };
  attempt([&] {
    writer = std::make_unique<checkpoint::RankWriter>(checkpoint::TemporaryFolder(request.root, request.tag, uuid),
                                                      world.rank, uuid, request.step);
    AddParts(*writer, state, optimizer);
  });
  const double all_bytes = SumOver(*world.world, world.device, writer ? static_cast<double>(writer->bytes()) : 0.0);
  std::string no_space;
  if (world.rank == 0) {
    try {
      checkpoint::RequireFreeSpace(request.root, static_cast<int64_t>(all_bytes));
    } catch (const std::exception& error) {
      no_space = error.what();
    }
  }
  no_space = BroadcastText(*world.world, world.device, no_space);
  if (failure.empty()) failure = no_space;
  checkpoint::RankFileSummary summary;
  if (failure.empty()) attempt([&] { summary = writer->Finish(); });
  return failure.empty() ? summary : checkpoint::RankFileSummary::Failed(world.rank, failure);
}

[[noreturn]] void Fail(const std::string& text, const SaveRequest& request) {
  throw Error(ErrorCode::kCheckpoint, "TRN010",
              "checkpoint " + request.tag + " was not saved; earlier checkpoints are untouched\n  " + text,
              request.root.string(),
              "free space or mend the folder, then resume from the newest checkpoint, if there is one");
}

// Weights beyond fp16's range would begin as infinities.
void RequireFinite(const at::Tensor& halves, const std::string& tensor, const CheckpointReader& reader) {
  const int64_t lost = at::isinf(halves).sum().item<int64_t>();
  if (lost == 0) return;
  throw Error(
      ErrorCode::kCheckpoint, "TRN016",
      fmt::format("{} of {} elements of {} are beyond 65504, the largest number of fp16", lost, halves.numel(), tensor),
      reader.info().directory.string(), "train in bf16 or fp32");
}

// Reads `count` elements of a held slice, converted to the type of `out` (1-D view of a flat buffer).
void ReadSlice(const CheckpointReader& reader, const OwnedSlice& slice, int tp_rank, const std::string& tensor,
               const std::string& state_name, DType dtype, const at::Tensor& out) {
  const checkpoint::StateInfo* info = reader.Require(tensor).FindState(state_name);
  TRIREME_CHECK(info != nullptr, "state " + state_name + " of " + tensor + " was not looked up before");
  std::vector<std::byte> raw(static_cast<size_t>(slice.count * SizeOf(info->dtype)));
  reader.ReadRegion(tensor, state_name, RegionOf(slice, tp_rank), raw);
  at::Tensor host = at::empty({slice.count}, at::TensorOptions().dtype(ScalarTypeOf(dtype)));
  checkpoint::ConvertElements(info->dtype, dtype, raw,
                              {static_cast<std::byte*>(host.mutable_data_ptr()), static_cast<size_t>(host.nbytes())});
  if (dtype == DType::kFloat16 && info->dtype != dtype) RequireFinite(host, tensor, reader);
  out.copy_(host);
}

void RequireShapes(const Plan& plan, const CheckpointReader& reader, const std::vector<std::string>& states) {
  std::vector<checkpoint::ExpectedTensor> expected;
  for (const UnitLayout& unit : plan.units) {
    for (const Segment& segment : unit.segments) expected.push_back({segment.parameter.name, segment.parameter.shape});
  }
  checkpoint::RequireTensors(reader, expected, states);
}

}  // namespace

void SaveCheckpoint(const RankState& state, const OptimizerConfig& optimizer, RankWorld& world,
                    const SaveRequest& request) {
  Communicator& comm = *world.world;
  std::string failure;
  checkpoint::Uuid uuid{};
  if (world.rank == 0) {
    uuid = checkpoint::NewUuid();
    try {
      checkpoint::BeginCheckpoint(request.root, request.tag, uuid);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  const std::string start =
      BroadcastText(comm, world.device, failure.empty() ? checkpoint::Hex(uuid) : "failed: " + failure);
  if (start.starts_with("failed: ")) Fail(start.substr(8), request);
  TRIREME_CHECK(checkpoint::ParseHex(start, uuid), "rank 0 sent no identity: " + start);

  const checkpoint::RankFileSummary summary = WriteRankFile(state, optimizer, world, request, uuid);
  const std::vector<std::string> texts = GatherTexts(comm, world.device, summary.ToJson());
  if (world.rank == 0) {
    try {
      std::vector<checkpoint::RankFileSummary> summaries;
      for (const std::string& text : texts) summaries.push_back(checkpoint::RankFileSummary::FromJson(text));
      checkpoint::CommitCheckpoint(request.root, request.tag, uuid, summaries, MetadataOf(state, optimizer, request));
    } catch (const std::exception& error) {
      failure = error.what();
      checkpoint::AbortCheckpoint(request.root, request.tag, uuid);
    }
  }
  const std::string end = BroadcastText(comm, world.device, failure);
  if (!end.empty()) Fail(end, request);
}

void LoadTensors(RankState& state, const OptimizerConfig& optimizer, const CheckpointReader& reader,
                 bool with_moments) {
  std::vector<SavedState> states = StatesOf(state.plan(), optimizer);
  if (!with_moments) states.resize(1);
  std::vector<std::string> names;
  for (const SavedState& saved : states) names.emplace_back(saved.name);
  RequireShapes(state.plan(), reader, names);
  const std::vector<OwnedSlice> slices = state.OwnedSlices();
  for (const int u : state.held_units()) {
    for (size_t s = 0; s < states.size(); ++s) {
      const at::Tensor flat = state.OptimizerState(u, static_cast<int>(s));
      for (const OwnedSlice& slice : slices) {
        if (slice.unit != u) continue;
        ReadSlice(reader, slice, state.tp_rank(), slice.segment->parameter.name, states[s].name, states[s].dtype,
                  flat.narrow(0, slice.own_begin, slice.count));
      }
      state.SetOptimizerState(u, static_cast<int>(s), flat);
    }
  }
  state.SetWeightsFromMasters();
}

void LoadInitialWeights(RankState& state, const CheckpointReader& reader) {
  RequireShapes(state.plan(), reader, {"model"});
  for (const OwnedSlice& slice : state.OwnedSlices()) {
    ReadSlice(reader, slice, state.tp_rank(), slice.segment->parameter.name, "model", state.plan().dtypes.compute,
              state.own_weights(slice.unit).narrow(0, slice.own_begin, slice.count));
  }
  state.SetMastersFromWeights();
}

void GatherWeights(RankState& state, Communicator& dp) {
  const int stage = state.plan().effective_zero_stage;
  if (stage == 0 || stage == 3) return;
  for (const int u : state.held_units()) dp.AllGather(state.own_weights(u), state.weights(u));
}

}  // namespace trireme
