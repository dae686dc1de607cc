#include "engine/schedule/arena.h"

#include <algorithm>
#include <limits>

#include "engine/base/bytes.h"
#include "engine/base/error.h"

namespace trireme {

int64_t Arena::Allocate(int64_t bytes, const LaneClock& joined) {
  if (bytes == 0) return 0;
  bytes = AlignUp(bytes, alignment_);
  int64_t best = -1, best_gap = std::numeric_limits<int64_t>::max(), end = 0;
  for (const Range& range : ranges_) {
    if (range.JoinedBy(joined)) continue;
    const int64_t gap = range.begin - end;
    if (gap >= bytes && gap < best_gap) {
      best = end;
      best_gap = gap;
    }
    end = std::max(end, range.end);
  }
  if (best < 0) best = end;
  const Range taken{best, best + bytes};
  // Freed ranges under the new one are joined by this lane: whoever joins the new range's end has joined theirs.
  std::erase_if(ranges_,
                [&](const Range& r) { return r.freed_by != kLive && r.begin >= taken.begin && r.end <= taken.end; });
  const auto place = std::upper_bound(ranges_.begin(), ranges_.end(), taken.begin,
                                      [](int64_t begin, const Range& range) { return begin < range.begin; });
  ranges_.insert(place, taken);
  peak_bytes_ = std::max(peak_bytes_, taken.end);
  return best;
}

void Arena::Free(int64_t offset, int64_t bytes, Lane lane, int32_t id) {
  if (bytes == 0) return;
  const auto range = std::find_if(ranges_.begin(), ranges_.end(),
                                  [&](const Range& r) { return r.begin == offset && r.freed_by == kLive; });
  TRIREME_CHECK(range != ranges_.end(), "a freed range is live");
  range->freed_by = id;
  range->lane = lane;
}

void Arena::Prune(const std::vector<LaneClock>& clocks) {
  std::erase_if(ranges_, [&](const Range& range) {
    return std::all_of(clocks.begin(), clocks.end(), [&](const LaneClock& clock) { return range.JoinedBy(clock); });
  });
}

}  // namespace trireme
