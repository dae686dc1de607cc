// Masters and moments of one rank in a file (offload_optimizer.device nvme): read and written whole for checkpoints, in
// chunks for updates, of which the next ones are read and the last ones written while one is worked on.
//   OptimizerFile file(plan, rank, {.path = nvme_path, .aio = config.aio});
//   file.Stream(unit, /*writes=*/true, [&](int64_t first, std::span<const at::Tensor> states) { ... });
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/storage/chunk_stream.h"
#include "engine/storage/store.h"
#include "parsers/config.h"

namespace trireme {

struct OptimizerFileOptions {
  std::string path;          // folder of the file, which has no name there (store.h)
  int64_t buffer_count = 4;  // chunks in memory, at least 3: what is read, worked on, written
  AioConfig aio = {};
};

// One thread at a time. Throws what StateStore throws (docs/errors/storage.md).
class OptimizerFile {
 public:
  // States of a unit: its masters, where the plan has them (Plan::HasMaster), then its moments.
  OptimizerFile(const Plan& plan, int rank, const OptimizerFileOptions& options);

  int64_t bytes() const { return store_->file_bytes(); }
  int64_t buffer_bytes() const { return buffer_bytes_; }
  const std::string& description() const { return store_->description(); }
  bool Holds(int unit) const { return !jobs_[static_cast<size_t>(unit)].states.empty(); }

  // One state of a unit, [own elements] of the master type, copied to or from the host.
  at::Tensor Read(int unit, int state);
  void Write(int unit, int state, const at::Tensor& values);

  // Calls `visit` for each chunk of the unit's states in order: elements first .. of its own part. `writes`: what the
  // visit changed is kept.
  using Visit = std::function<void(int64_t first, std::span<const at::Tensor> states)>;
  void Stream(int unit, bool writes, const Visit& visit);

 private:
  StreamJob JobOf(int unit, bool writes) const;

  at::ScalarType type_;
  int64_t element_bytes_, buffer_bytes_ = 0;
  std::vector<StreamJob> jobs_;  // by unit; without states: the unit is not here
  std::vector<int> next_;        // the unit that is updated after this one; -1: none
  std::unique_ptr<StateStore> store_;
  std::unique_ptr<ChunkStream> stream_;
};

}  // namespace trireme
