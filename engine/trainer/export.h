// Out of a running job: the model as a Hugging Face folder (checkpoint/huggingface.h).
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "checkpoint/huggingface.h"
#include "engine/base/dtype.h"
#include "engine/trainer/rank_world.h"
#include "engine/zero/rank_state.h"

namespace trireme {

struct ExportRequest {
  std::filesystem::path folder;
  DType dtype = DType::kFloat32;                       // of the file: the compute type's weights, else rounded masters
  std::vector<checkpoint::Companion> companions = {};  // rank 0
  int64_t max_shard_bytes = safetensors::kMaxShardBytes;
  // Bytes on the device that nothing uses meanwhile: gathered units lie there, and not in memory of their own. Too
  // small, or undefined: memory is allocated.
  at::Tensor scratch = {};
};

// All ranks, between steps; rank 0 writes. Where weights are sharded, one unit at a time is gathered, and goes to the
// file tensor by tensor: beside `scratch` no rank takes more than one tensor. A failure of rank 0 is Error{kCheckpoint,
// TRN017} on all ranks, and leaves no folder.
void ExportHuggingFace(const RankState& state, RankWorld& world, Communicator& dp, const ExportRequest& request);

}  // namespace trireme
