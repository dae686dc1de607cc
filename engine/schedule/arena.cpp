#include "engine/schedule/arena.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "engine/base/bytes.h"

namespace trireme {
namespace {

bool HasEnded(const Life& life, const LaneClock& known) {
  return known[static_cast<size_t>(life.end_lane)] >= life.end;
}

// Calls `visit(earlier, later)` with the indices of each two lives that may not share bytes.
template <typename Visit>
void ForEachConflict(const std::vector<Life>& lives, Visit visit) {
  std::array<bool, kNumLanes> allocates{};
  for (const Life& life : lives) allocates[static_cast<size_t>(life.begin_lane)] = true;
  std::array<LaneClock, kNumLanes> known;
  for (LaneClock& clock : known) clock.fill(-1);
  // Nobody has to care for a life that each allocating lane knows to have ended.
  const auto forgotten = [&](size_t index) {
    for (size_t lane = 0; lane < kNumLanes; ++lane) {
      if (allocates[lane] && !HasEnded(lives[index], known[lane])) return false;
    }
    return true;
  };
  std::vector<size_t> active;
  for (size_t later = 0; later < lives.size(); ++later) {
    if (lives[later].bytes == 0) continue;
    for (const size_t earlier : active) {
      if (!HasEnded(lives[earlier], lives[later].known)) visit(earlier, later);
    }
    active.push_back(later);
    known[static_cast<size_t>(lives[later].begin_lane)] = lives[later].known;
    if (later % 32 == 0) std::erase_if(active, forgotten);
  }
}

BufferKey WithoutMicroBatch(BufferKey key) {
  key.micro_batch = -1;
  return key;
}

// Lives that get one place.
class Places {
 public:
  explicit Places(const std::vector<Life>& lives) : of_life_(lives.size()), together_(lives.size()) {
    // Lives of one buffer in different micro-batches, and how many of them are there at once.
    std::map<BufferKey, size_t> families;
    std::vector<size_t> family(lives.size());
    for (size_t i = 0; i < lives.size(); ++i) {
      family[i] = families.try_emplace(WithoutMicroBatch(lives[i].key), families.size()).first->second;
    }
    std::vector<int32_t> period(families.size(), 1);
    ForEachConflict(lives, [&](size_t earlier, size_t later) {
      if (family[earlier] != family[later]) return;
      int32_t& periods = period[family[later]];
      periods = std::max(periods, lives[later].key.micro_batch - lives[earlier].key.micro_batch + 1);
    });
    std::map<BufferKey, size_t> numbers;
    for (size_t i = 0; i < lives.size(); ++i) {
      BufferKey key = lives[i].key;
      if (key.micro_batch >= 0) key.micro_batch %= period[family[i]];
      const auto [place, is_new] = numbers.try_emplace(key, bytes_.size());
      if (is_new) bytes_.push_back(0);
      of_life_[i] = place->second;
      bytes_[place->second] = std::max(bytes_[place->second], lives[i].bytes);
    }
    apart_.assign(bytes_.size() * bytes_.size(), false);
    ForEachConflict(lives, [&](size_t earlier, size_t later) {
      apart_[Pair(of_life_[earlier], of_life_[later])] = true;
      together_[later] += lives[earlier].bytes;
    });
    for (size_t i = 0; i < lives.size(); ++i) together_[i] += lives[i].bytes;
  }

  size_t size() const { return bytes_.size(); }
  size_t OfLife(size_t life) const { return of_life_[life]; }
  int64_t Bytes(size_t place) const { return bytes_[place]; }
  bool Apart(size_t a, size_t b) const { return apart_[Pair(a, b)]; }
  size_t LifeAtPeak() const { return static_cast<size_t>(std::ranges::max_element(together_) - together_.begin()); }

 private:
  size_t Pair(size_t a, size_t b) const { return std::min(a, b) * bytes_.size() + std::max(a, b); }

  std::vector<size_t> of_life_;
  std::vector<int64_t> bytes_;
  std::vector<bool> apart_;        // half of a matrix
  std::vector<int64_t> together_;  // of each life: its bytes and those of the earlier ones that it keeps apart from
};

// Lowest offset at which `place` meets none of the placed ones that it must keep apart from.
int64_t LowestOffset(const Places& places, size_t place, const std::vector<size_t>& placed,
                     const std::vector<int64_t>& offsets, int64_t alignment) {
  int64_t offset = 0;
  for (const size_t other : placed) {  // by offset
    if (!places.Apart(place, other)) continue;
    if (offset + places.Bytes(place) <= offsets[other]) break;
    offset = std::max(offset, AlignUp(offsets[other] + places.Bytes(other), alignment));
  }
  return offset;
}

}  // namespace

Packing PackArena(const std::vector<Life>& lives, int64_t alignment) {
  const Places places(lives);
  std::vector<size_t> order(places.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return places.Bytes(a) > places.Bytes(b); });

  Packing packing;
  std::vector<int64_t> offsets(places.size(), 0);
  std::vector<size_t> placed;
  for (const size_t place : order) {
    if (places.Bytes(place) == 0) continue;
    offsets[place] = LowestOffset(places, place, placed, offsets, alignment);
    packing.arena_bytes = std::max(packing.arena_bytes, AlignUp(offsets[place] + places.Bytes(place), alignment));
    const auto position = std::upper_bound(placed.begin(), placed.end(), offsets[place],
                                           [&](int64_t offset, size_t other) { return offset < offsets[other]; });
    placed.insert(position, place);
  }
  packing.offsets.reserve(lives.size());
  for (size_t i = 0; i < lives.size(); ++i) packing.offsets.push_back(offsets[places.OfLife(i)]);
  if (lives.empty()) return packing;
  const size_t fullest = places.LifeAtPeak();
  ForEachConflict(lives, [&](size_t earlier, size_t later) {
    if (later == fullest) packing.at_peak.push_back(earlier);
  });
  packing.at_peak.push_back(fullest);
  return packing;
}

}  // namespace trireme
