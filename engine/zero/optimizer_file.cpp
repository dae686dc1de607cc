#include "engine/zero/optimizer_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/kernels/scalar_type.h"

namespace trireme {
namespace {

// Large enough that the disk works on long runs; a large unit has several of them, so that its parts overlap.
constexpr int64_t kChunkElements = 4 << 20, kChunksOfUnit = 4;

std::span<std::byte> BytesOf(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

}  // namespace

OptimizerFile::OptimizerFile(const Plan& plan, int rank, const OptimizerFileOptions& options)
    : type_(ScalarTypeOf(plan.dtypes.master)),
      element_bytes_(SizeOf(plan.dtypes.master)),
      jobs_(plan.units.size()),
      next_(plan.units.size(), -1) {
  std::vector<int64_t> sections;
  int64_t largest = 1;
  size_t states = 1;
  int before = -1;
  for (const int u : plan.UnitsOf(plan.topology.CoordinateOf(rank).pp_rank)) {
    if (!plan.OptimizerOnHost(u)) continue;
    StreamJob& job = jobs_[static_cast<size_t>(u)];
    job.elements = plan.OwnElements(u);
    for (int s = 0; s < plan.moments_per_element + (plan.HasMaster(u) ? 1 : 0); ++s) {
      job.states.push_back({static_cast<int>(sections.size()), element_bytes_, true, true});
      sections.push_back(job.elements * element_bytes_);
    }
    if (job.states.empty()) continue;
    states = std::max(states, job.states.size());
    largest = std::max(largest, job.elements);
    if (before >= 0) next_[static_cast<size_t>(before)] = u;
    before = u;
  }
  store_ = StateStore::Create({.folder = options.path, .rank = rank, .aio = options.aio}, sections);
  StreamOptions stream;
  stream.chunk_elements = std::min(kChunkElements, AlignUp(CeilDiv(largest, kChunksOfUnit), kStorageAlignment));
  stream.bytes_per_element = element_bytes_ * static_cast<int64_t>(states);
  stream.buffer_count = std::max<int64_t>(3, options.buffer_count);
  stream.pipeline_read = stream.pipeline_write = true;
  buffer_bytes_ = stream.BufferBytes();
  stream_ = std::make_unique<ChunkStream>(*store_, stream);
}

StreamJob OptimizerFile::JobOf(int unit, bool writes) const {
  StreamJob job = jobs_[static_cast<size_t>(unit)];
  for (StreamedState& state : job.states) state.write = writes;
  return job;
}

at::Tensor OptimizerFile::Read(int unit, int state) {
  const StreamJob& job = jobs_[static_cast<size_t>(unit)];
  stream_->Finish();
  at::Tensor values = at::empty({job.elements}, at::TensorOptions().dtype(type_));
  store_->Read(job.states[static_cast<size_t>(state)].section, 0, BytesOf(values)).Wait();
  return values;
}

void OptimizerFile::Write(int unit, int state, const at::Tensor& values) {
  const StreamJob& job = jobs_[static_cast<size_t>(unit)];
  TRIREME_CHECK(values.numel() == job.elements && values.scalar_type() == type_ && values.is_contiguous(),
                "a state of a unit is written whole");
  stream_->Finish();
  store_->Write(job.states[static_cast<size_t>(state)].section, 0, BytesOf(values)).Wait();
}

void OptimizerFile::Stream(int unit, bool writes, const Visit& visit) {
  const int after = next_[static_cast<size_t>(unit)];
  const StreamJob job = JobOf(unit, writes), next = after >= 0 ? JobOf(after, writes) : StreamJob();
  const auto update = [&](const StreamChunk& chunk) {
    std::vector<at::Tensor> states;
    for (std::byte* memory : chunk.states) {
      states.push_back(at::from_blob(memory, {chunk.count}, at::TensorOptions().dtype(type_)));
    }
    visit(chunk.first, states);
  };
  stream_->Run(job, update, after >= 0 ? &next : nullptr);
}

}  // namespace trireme
