#include <algorithm>

#include "engine/plan/parts.h"

namespace trireme::plan_parts {

// Grows ranges in backward order, the order in which gradients get ready: while a bucket is below the target it takes
// the next unit, unless the two exceed the limit that the config's keys set. So a small head joins a large last block,
// and a unit beyond the limit stands alone.
std::vector<UnitRange> MakeBuckets(const std::vector<UnitLayout>& units, const std::vector<UnitRange>& stages,
                                   const ZeroConfig& zero, int zero_stage) {
  const int64_t limit = std::min(zero.reduce_bucket_size, zero.allgather_bucket_size);
  int64_t model = 0;
  for (const UnitLayout& unit : units) model += unit.padded_elements;
  int64_t target = std::min(kBucketTargetElements, model / kMinBucketsOfModel);
  if (zero_stage == 3) target = std::min(target, zero.stage3_prefetch_bucket_size);

  std::vector<UnitRange> buckets;
  int64_t elements = 0;
  for (int unit = static_cast<int>(units.size()) - 1; unit >= 0; --unit) {
    const int64_t size = units[static_cast<size_t>(unit)].padded_elements;
    const bool ends_stage = std::ranges::any_of(stages, [&](const UnitRange& stage) { return stage.last == unit; });
    const auto begins_segment = [&](int first) {
      const UnitRange& segment = units[static_cast<size_t>(first)].segment;
      return zero_stage == 3 && segment.first == first && segment.last > first;
    };
    const bool cut = ends_stage || (!buckets.empty() && begins_segment(buckets.back().first));
    if (!cut && elements < target && elements + size <= limit) {
      buckets.back().first = unit;
      elements += size;
    } else {
      buckets.push_back({unit, unit});
      elements = size;
    }
  }
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

}  // namespace trireme::plan_parts
