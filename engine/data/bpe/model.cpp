#include "engine/data/bpe/model.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trireme::data {
namespace {

constexpr int32_t kNone = -1;
constexpr size_t kShortPiece = 64;           // symbols up to which scanning for the best pair beats a heap
constexpr size_t kLongestRemembered = 128;   // bytes
constexpr size_t kMostRemembered = 1 << 18;  // pieces; then all are forgotten: memory stays bounded

uint64_t PairOf(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t SlotOf(uint64_t pair, size_t mask) {
  pair *= 0x9E3779B97F4A7C15ULL;
  return static_cast<size_t>(pair ^ pair >> 32) & mask;
}

}  // namespace

PieceTable::PieceTable(size_t expected) { Grow(std::bit_ceil(std::max<size_t>(1024, 2 * expected))); }

uint64_t PieceTable::Hash(std::string_view piece) { return XXH3_64bits(piece.data(), piece.size()) | 1; }

const PieceTable::Entry* PieceTable::Find(std::string_view piece, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash >> 8 & mask; slots_[slot].hash != 0; slot = (slot + 1) & mask) {
    const Entry& entry = slots_[slot];
    if (entry.hash == hash && entry.text_size == piece.size() &&
        std::memcmp(texts_.data() + entry.text, piece.data(), piece.size()) == 0)
      return &entry;
  }
  return nullptr;
}

void PieceTable::Insert(std::string_view piece, uint64_t hash, uint32_t value, uint32_t value_size) {
  if (2 * (size_ + 1) > slots_.size()) Grow(2 * slots_.size());
  const size_t mask = slots_.size() - 1;
  size_t slot = hash >> 8 & mask;
  while (slots_[slot].hash != 0) slot = (slot + 1) & mask;
  slots_[slot] = {hash, static_cast<uint32_t>(texts_.size()), static_cast<uint32_t>(piece.size()), value, value_size};
  texts_.insert(texts_.end(), piece.begin(), piece.end());
  ++size_;
}

void PieceTable::Clear() {
  std::ranges::fill(slots_, Entry{});
  texts_.clear();
  size_ = 0;
}

void PieceTable::Grow(size_t slots) {
  std::vector<Entry> old(slots);
  old.swap(slots_);
  for (const Entry& entry : old) {
    if (entry.hash == 0) continue;
    size_t slot = entry.hash >> 8 & (slots - 1);
    while (slots_[slot].hash != 0) slot = (slot + 1) & (slots - 1);
    slots_[slot] = entry;
  }
}

BpeModel::BpeModel(const std::vector<Merge>& merges, const std::vector<std::pair<std::string, int32_t>>& whole,
                   const Options& options)
    : rules_(std::bit_ceil(std::max<size_t>(16, 2 * merges.size()))), options_(options), whole_(whole.size()) {
  const size_t mask = rules_.size() - 1;
  for (size_t i = 0; i < merges.size(); ++i) {
    const uint64_t pair = PairOf(merges[i].left, merges[i].right);
    size_t slot = SlotOf(pair, mask);
    while (rules_[slot].pair != ~uint64_t{0} && rules_[slot].pair != pair) slot = (slot + 1) & mask;
    rules_[slot] = {pair, static_cast<int32_t>(i), merges[i].result};  // of a pair listed twice the last counts
  }
  if (!options_.ignore_merges) return;
  for (const auto& [bytes, id] : whole) whole_.Insert(bytes, PieceTable::Hash(bytes), static_cast<uint32_t>(id), 1);
}

const BpeModel::Rule* BpeModel::Find(int32_t left, int32_t right) const {
  const uint64_t pair = PairOf(left, right);
  const size_t mask = rules_.size() - 1;
  for (size_t slot = SlotOf(pair, mask); rules_[slot].pair != ~uint64_t{0}; slot = (slot + 1) & mask) {
    if (rules_[slot].pair == pair) return &rules_[slot];
  }
  return nullptr;
}

void BpeModel::Rank(Memory& memory, size_t index) const {
  Memory::Part& part = memory.parts[index];
  const Rule* rule = part.next == kNone ? nullptr : Find(part.id, memory.parts[static_cast<size_t>(part.next)].id);
  part.rank = rule ? rule->rank : std::numeric_limits<int32_t>::max();
  part.result = rule ? rule->result : kNone;
}

void BpeModel::MergeShort(Memory& memory) const {
  auto& parts = memory.parts;
  for (size_t i = 0; i < parts.size(); ++i) Rank(memory, i);
  while (parts.size() > 1) {
    size_t best = 0;
    for (size_t i = 1; i < parts.size(); ++i) {
      if (parts[i].rank < parts[best].rank) best = i;
    }
    if (parts[best].result == kNone) return;
    parts[best].id = parts[best].result;
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    // Here `next` says only whether there is one: the neighbour is the next element.
    parts.back().next = kNone;
    for (size_t i = best == 0 ? 0 : best - 1; i <= best; ++i) {
      if (parts[i].next != kNone) parts[i].next = static_cast<int32_t>(i) + 1;
      Rank(memory, i);
    }
  }
}

void BpeModel::MergeLong(Memory& memory) const {
  auto& parts = memory.parts;
  auto& heap = memory.heap;
  heap.clear();
  // Order: rank, then place. An entry whose pair has changed since does not find its result any more.
  const auto push = [&](int32_t index) {
    Rank(memory, static_cast<size_t>(index));
    const Memory::Part& part = parts[static_cast<size_t>(index)];
    if (part.result == kNone) return;
    heap.emplace_back(PairOf(part.rank, index), part.result);
    std::ranges::push_heap(heap, std::greater<>());
  };
  for (size_t i = 0; i < parts.size(); ++i) push(static_cast<int32_t>(i));
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, std::greater<>());
    const auto [order, result] = heap.back();
    heap.pop_back();
    const auto index = static_cast<int32_t>(order & 0xFFFFFFFF);
    Memory::Part& part = parts[static_cast<size_t>(index)];
    if (part.id == kNone || part.result != result || part.rank != static_cast<int32_t>(order >> 32)) continue;
    Memory::Part& eaten = parts[static_cast<size_t>(part.next)];
    part.id = part.result;
    part.next = eaten.next;
    eaten.id = kNone;
    if (part.next != kNone) parts[static_cast<size_t>(part.next)].previous = index;
    push(index);
    if (part.previous != kNone) push(part.previous);
  }
}

void BpeModel::EncodeNew(std::string_view piece, Memory& memory, std::vector<int32_t>& ids) const {
  auto& parts = memory.parts;
  parts.clear();
  bool after_unk = false;
  for (const char c : piece) {
    int32_t id = options_.byte_ids[static_cast<unsigned char>(c)];
    const bool unk = id == kNone;
    if (unk && after_unk && options_.fuse_unk) continue;
    if (unk) id = options_.unk_id;
    after_unk = unk;
    const auto index = static_cast<int32_t>(parts.size());
    parts.push_back({id, 0, kNone, index - 1, index + 1});
  }
  parts.back().next = kNone;
  if (parts.size() <= kShortPiece) {
    MergeShort(memory);
    for (const Memory::Part& part : parts) ids.push_back(part.id);
    return;
  }
  MergeLong(memory);
  for (int32_t i = 0; i != kNone; i = parts[static_cast<size_t>(i)].next)
    ids.push_back(parts[static_cast<size_t>(i)].id);
}

void BpeModel::Remember(std::string_view piece, uint64_t hash, const std::vector<int32_t>& ids, size_t begin,
                        Memory& memory) const {
  if (piece.size() > kLongestRemembered) return;
  if (memory.seen.size() == kMostRemembered) {
    memory.seen.Clear();
    memory.seen_ids.clear();
  }
  const auto place = static_cast<uint32_t>(memory.seen_ids.size());
  memory.seen_ids.insert(memory.seen_ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end());
  memory.seen.Insert(piece, hash, place, static_cast<uint32_t>(ids.size() - begin));
}

void BpeModel::Encode(std::string_view piece, Memory& memory, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  const uint64_t hash = PieceTable::Hash(piece);
  if (const auto* seen = memory.seen.Find(piece, hash)) {
    const int32_t* first = memory.seen_ids.data() + seen->value;
    if (seen->value_size == 1) {
      ids.push_back(*first);
    } else {
      ids.insert(ids.end(), first, first + seen->value_size);
    }
    return;
  }
  const size_t begin = ids.size();
  const auto* whole = options_.ignore_merges ? whole_.Find(piece, hash) : nullptr;
  if (whole != nullptr) {
    ids.push_back(static_cast<int32_t>(whole->value));
  } else {
    EncodeNew(piece, memory, ids);
  }
  Remember(piece, hash, ids, begin, memory);
}

}  // namespace trireme::data
