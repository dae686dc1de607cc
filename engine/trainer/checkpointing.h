// Between a rank's flat buffers and checkpoints of logical tensors: saving is writing what is own, loading is
// resharding.
#pragma once
#include <filesystem>
#include <string>

#include "checkpoint/reader.h"
#include "engine/trainer/rank_world.h"
#include "engine/zero/rank_state.h"
#include "parsers/config.h"

namespace trireme {

struct SaveRequest {
  std::filesystem::path root;
  std::string tag;
  int64_t step = 0;
  // JSON texts, used on rank 0.
  std::string model_config, optimizer, trainer_state, data_position, run_config;
};

// Called by all ranks; returns when `latest` names the new checkpoint. Any rank's failure throws Error{kCheckpoint} on
// all ranks, and the previous checkpoint stays the latest.
void SaveCheckpoint(const RankState& state, const OptimizerConfig& optimizer, RankWorld& world,
                    const SaveRequest& request);

// Fills this rank's masters and moments (where the checkpoint has them and `with_moments`), then its weights. Any saved
// layout.
void LoadTensors(RankState& state, const OptimizerConfig& optimizer, const checkpoint::CheckpointReader& reader,
                 bool with_moments);

// Weights only, from a Hugging Face folder. The masters are the image of the weights rounded to the compute type, as
// DeepSpeed makes them.
void LoadInitialWeights(RankState& state, const checkpoint::CheckpointReader& reader);

// ZeRO 1, 2: every rank's own part of the weights to all ranks.
void GatherWeights(RankState& state, Communicator& dp);

}  // namespace trireme
