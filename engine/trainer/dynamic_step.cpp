#include "engine/trainer/dynamic_step.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/optim/lr_schedule.h"

namespace trireme {
namespace {

data::StreamOrder OrderOf(PickingOrder order) {
  switch (order) {
    case PickingOrder::kRandom:
      return data::StreamOrder::kRandom;
    case PickingOrder::kLength:
      return data::StreamOrder::kLength;
    case PickingOrder::kFile:
      break;
  }
  return data::StreamOrder::kFile;
}

}  // namespace

data::DynamicBatchOptions DynamicOptionsOf(const Plan& plan, const Config& config) {
  TRIREME_CHECK(plan.batch.is_dynamic(), "the plan's micro-batches are all alike");
  const DynamicBatchPlan& dynamic = plan.batch.dynamic;
  data::DynamicBatchOptions options;
  options.packs = plan.batch.train_batch_size;
  options.max_tokens = dynamic.max_tokens;
  options.min_rows = dynamic.min_rows;
  options.max_rows = dynamic.max_rows;
  options.longest = plan.batch.sequence_length;
  options.length_multiple = dynamic.length_multiple;
  options.order = OrderOf(config.data_efficiency.dynamic_batching.sequence_picking_order);
  options.seed = config.data_efficiency.seed;
  return options;
}

StepBatch StepBatchAt(const Plan& plan, const Config& config, int dp_rank,
                      std::shared_ptr<const data::DynamicBatches> source, int64_t position) {
  const int64_t dp_size = plan.topology.dp_size;
  const auto step = std::make_shared<const data::DynamicStep>(source->At(position));
  StepBatch batch;
  for (int64_t m = 0; m < plan.batch.num_micro_batches; ++m) {
    batch.shapes.push_back(step->packs[static_cast<size_t>(m * dp_size + dp_rank)]);
  }
  batch.num_samples = step->num_samples();
  batch.rate_factor = RateFactor(config.data_efficiency.dynamic_batching.lr_scaling_method, batch.num_samples,
                                 plan.batch.train_batch_size);
  batch.fill = [step, dp_rank, dp_size, source = std::move(source)](int64_t micro_batch, const at::Tensor& tokens) {
    source->Fill(*step, micro_batch * dp_size + dp_rank,
                 {tokens.mutable_data_ptr<int32_t>(), static_cast<size_t>(tokens.numel())});
  };
  return batch;
}

}  // namespace trireme
