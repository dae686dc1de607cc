// Steps of sequences of different lengths, out of the sampler that all ranks compute alike.
//   StepBatch batch = StepBatchAt(plan, config, dp_rank, source, position);  trainer.StartStep(std::move(batch));
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/data/dynamic_batches.h"
#include "engine/execute/executor.h"
#include "engine/plan/plan.h"
#include "parsers/config.h"

namespace trireme {

// What one rank does in one step.
struct StepBatch {
  TokenFill fill;
  std::vector<MicroBatchShape> shapes = {};  // by micro-batch, where lengths differ; else empty
  int64_t num_samples = 0;                   // of all ranks
  double rate_factor = 1;                    // of the learning rate
};

// `plan` has dynamic batches.
data::DynamicBatchOptions DynamicOptionsOf(const Plan& plan, const Config& config);

// The step that begins at a position of the stream. It keeps the source alive.
StepBatch StepBatchAt(const Plan& plan, const Config& config, int dp_rank,
                      std::shared_ptr<const data::DynamicBatches> source, int64_t position);

}  // namespace trireme
