#include "engine/schedule/buffers.h"

#include "engine/schedule/compile.h"

namespace trireme {

int64_t BufferBytes(const Plan& plan, const BufferKey& key) {
  const int64_t tokens = plan.batch.tokens_per_micro_batch();
  const int64_t compute = SizeOf(plan.dtypes.compute), accumulate = SizeOf(plan.dtypes.accumulate);
  const int stage = plan.effective_zero_stage;
  const auto unit = [&]() -> const UnitLayout& { return plan.units.at(static_cast<size_t>(key.unit)); };
  switch (key.kind) {
    case BufferKind::kWeights:
      return (stage == 3 ? unit().shard_elements : unit().padded_elements) * compute;
    case BufferKind::kMaster:
      return plan.OwnElements(key.unit) * SizeOf(plan.dtypes.master) *
             (plan.moments_per_element + (plan.HasMaster(key.unit) ? 1 : 0));
    case BufferKind::kGradientSum:
      return (stage >= 2 ? unit().shard_elements : unit().padded_elements) * accumulate;
    case BufferKind::kUpdateNorms:
      return plan.trust_ratios ? static_cast<int64_t>(unit().segments.size()) * 2 * SizeOf(DType::kFloat64) : 0;
    case BufferKind::kHostGradient:
      return plan.OwnElements(key.unit) * accumulate;
    case BufferKind::kHostState:
    case BufferKind::kStepState:
      return kStepStateBytes;
    case BufferKind::kTokens:
      return plan.batch.micro_batch_size * (plan.batch.sequence_length + 1) * 4;
    case BufferKind::kGathered:
      return unit().padded_elements * compute;
    case BufferKind::kBoundary:
    case BufferKind::kBoundaryGradient:
      return plan.boundary_tokens() * plan.model.hidden_size * compute;
    case BufferKind::kSaved:
      return LayOutSaved(unit().spec, plan.dtypes, tokens).arena_bytes;
    case BufferKind::kDeferred:
      return LayOutSaved(unit().spec.deferred, plan.dtypes, tokens).arena_bytes;
    case BufferKind::kGradient:
      return unit().padded_elements * accumulate;
    case BufferKind::kStaging:
      return (key.slot == 0 ? unit().shard_elements : unit().padded_elements) * SizeOf(plan.dtypes.communicate);
    case BufferKind::kShard:
    case BufferKind::kHostWeights:
      return plan.OwnElements(key.unit) * compute;
  }
  return 0;
}

int64_t PoolBytes(const Plan& plan, const BufferKey& key) {
  if (key.kind != BufferKind::kSaved) return 0;
  const UnitSpec& spec = plan.units.at(static_cast<size_t>(key.unit)).spec;
  return LayOutSaved(spec, plan.dtypes, plan.batch.tokens_per_micro_batch()).pool_bytes;
}

CompileOptions OptionsOf(const Plan& plan) {
  CompileOptions options;
  options.bytes = [&plan](const BufferKey& key) { return BufferBytes(plan, key); };
  options.pool_bytes = [&plan](const BufferKey& key) { return PoolBytes(plan, key); };
  return options;
}

}  // namespace trireme
