#include <utility>

#include "engine/base/bytes.h"
#include "engine/plan/parts.h"

namespace trireme {

namespace plan_parts {

UnitLayout LayOutUnit(UnitSpec spec, int dp_size) {
  UnitLayout layout;
  for (const ParameterSpec& parameter : spec.parameters) {
    const int64_t begin = parameter.joined ? layout.elements : AlignUp(layout.elements, kSegmentAlignment);
    layout.segments.push_back({parameter, begin, parameter.HeldElements()});
    layout.elements = begin + layout.segments.back().count;
  }
  layout.padded_elements = AlignUp(layout.elements, dp_size * kShardAlignment);
  layout.shard_elements = layout.padded_elements / dp_size;
  layout.spec = std::move(spec);
  return layout;
}

}  // namespace plan_parts

SavedLayout LayOutSaved(const std::vector<SavedSpec>& tensors, const PlanDTypes& dtypes, int64_t tokens) {
  const int64_t compute_size = SizeOf(dtypes.compute);
  const int64_t statistics_size = dtypes.compute == DType::kFloat64 ? 8 : 4;
  SavedLayout layout;
  for (const SavedSpec& saved : tensors) {
    const int64_t bytes =
        tokens / saved.token_share * saved.elements_per_token * (saved.compute_dtype ? compute_size : statistics_size);
    layout.bytes.push_back(bytes);
    if (saved.place == SavedSpec::Place::kRemade) {
      layout.offsets.push_back(-1);
    } else if (saved.place == SavedSpec::Place::kPool) {
      layout.offsets.push_back(-1);
      layout.pool_bytes += bytes;
    } else {
      layout.offsets.push_back(layout.arena_bytes);
      layout.arena_bytes += AlignUp(bytes, kSavedAlignment);
    }
  }
  return layout;
}

SavedLayout LayOutSaved(const UnitSpec& spec, const PlanDTypes& dtypes, int64_t tokens) {
  return LayOutSaved(spec.saved, dtypes, tokens);
}

}  // namespace trireme
