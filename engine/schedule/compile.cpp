#include "engine/schedule/compile.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>
#include <utility>

#include "engine/base/error.h"
#include "engine/schedule/arena.h"

namespace trireme {
namespace {

constexpr LaneClock kNothing = {-1, -1, -1, -1, -1, -1, -1};

constexpr int32_t kNeverEnds = std::numeric_limits<int32_t>::max();

size_t Index(Lane lane) { return static_cast<size_t>(lane); }

// What happened to one buffer so far.
struct History {
  int32_t last_write = -1;        // last instruction that wrote, added or freed: they exclude all others
  LaneClock reads = kNothing;     // last reader of each lane since then
  LaneClock last_use = kNothing;  // of each lane
  unsigned carried_read_lanes = 0;
  bool written = false;  // written or added to in this Program
  bool live = false;     // transient: has a range now
  size_t life = 0;       // the last one: index into lives_
};

// Histories are looked up several times for each use of a buffer: in a sorted map that took a quarter of a search over
// layouts.
struct Hash {
  size_t operator()(const BufferKey& key) const {
    const auto bits = [](auto value) { return static_cast<uint64_t>(static_cast<uint16_t>(value)); };
    const uint64_t where = bits(key.kind) << 48 | bits(key.unit) << 32 | bits(key.chunk) << 16 | bits(key.slot);
    const uint64_t mixed = (where ^ static_cast<uint64_t>(key.micro_batch) << 40) * 0x9E3779B97F4A7C15U;
    return static_cast<size_t>(mixed ^ mixed >> 32);
  }
};

class Compiler {
 public:
  Compiler(const Program& program, const CompileOptions& options) : program_(program), options_(options) {
    lane_clocks_.fill(kNothing);
  }

  CompiledProgram Compile() {
    compiled_.kind = program_.kind;
    compiled_.rank = program_.rank;
    compiled_.instructions.reserve(program_.instructions.size());
    for (const Instruction& instruction : program_.instructions) Add(instruction);
    PlaceBuffers();
    return std::move(compiled_);
  }

 private:
  bool BeginsLife(const Instruction& instruction) {
    const auto begins = [&](const BufferKey& key) { return !IsPersistent(key.kind) && !buffers_[key].live; };
    return std::any_of(instruction.writes.begin(), instruction.writes.end(), begins) ||
           std::any_of(instruction.adds.begin(), instruction.adds.end(), begins);
  }

  void Add(const Instruction& instruction) {
    TRIREME_CHECK(instruction.id == static_cast<int32_t>(compiled_.instructions.size()),
                  "an instruction's id is its position");
    compiled_.instructions.push_back({instruction, {}, {}, {}, {}, {}});
    CompiledInstruction& compiled = compiled_.instructions.back();
    const LaneClock clock = Wait(compiled);
    Carry(compiled);
    for (const BufferKey& key : instruction.reads) compiled.reads.push_back(Read(key));
    for (const BufferKey& key : instruction.writes)
      compiled.writes.push_back(Write(key, instruction, clock, /*adds=*/false));
    for (const BufferKey& key : instruction.adds)
      compiled.adds.push_back(Write(key, instruction, clock, /*adds=*/true));
    Record(instruction);
    compiled_.peak_pool_bytes = std::max(compiled_.peak_pool_bytes, pool_bytes_);
    for (const BufferKey& key : instruction.frees) Free(instruction, key);
    lane_clocks_[Index(instruction.lane)] = EndOf(instruction.lane, instruction.id, clock);
    start_clocks_.push_back(clock);
  }

  // ---- Waits.

  static LaneClock EndOf(Lane lane, int32_t id, LaneClock start) {
    start[Index(lane)] = id;
    return start;
  }

  // Adds what is known once instruction `id` of another lane has ended.
  void Join(LaneClock& clock, int32_t id) const {
    const LaneClock end =
        EndOf(program_.instructions[static_cast<size_t>(id)].lane, id, start_clocks_[static_cast<size_t>(id)]);
    for (size_t lane = 0; lane < clock.size(); ++lane) clock[lane] = std::max(clock[lane], end[lane]);
  }

  // Latest first: what an early instruction is known by cannot cover a later one.
  LaneClock Resolve(const LaneClock& wanted, Lane own, std::vector<int32_t>* waits) const {
    LaneClock clock = lane_clocks_[Index(own)], order = wanted;
    std::sort(order.rbegin(), order.rend());
    for (const int32_t id : order) {
      if (id < 0) break;
      const Lane lane = program_.instructions[static_cast<size_t>(id)].lane;
      if (lane == own || clock[Index(lane)] >= id) continue;
      Join(clock, id);
      if (waits != nullptr) waits->push_back(id);
    }
    return clock;
  }

  LaneClock Wait(CompiledInstruction& compiled) {
    const Instruction& instruction = compiled.instruction;
    LaneClock wanted = kNothing;
    const auto want = [&](int32_t id) {
      if (id < 0) return;
      int32_t& latest = wanted[Index(program_.instructions[static_cast<size_t>(id)].lane)];
      latest = std::max(latest, id);
    };
    for (const BufferKey& key : instruction.reads) want(buffers_[key].last_write);
    for (const auto* keys : {&instruction.writes, &instruction.adds, &instruction.frees}) {
      for (const BufferKey& key : *keys) {
        const History& history = buffers_[key];
        want(history.last_write);
        for (const int32_t id : history.reads) want(id);
      }
    }
    for (const auto* keys : {&instruction.writes, &instruction.adds}) {
      for (const BufferKey& key : *keys) want(EndInLastMicroBatch(key));
    }
    if (BeginsLife(instruction)) BoundUnjoinedFrees(instruction.lane, wanted);
    return Resolve(wanted, instruction.lane, &compiled.waits);
  }

  // A micro-batch takes the places of the one before, so it waits until they are free: else a large gradient that is
  // freed at the end of one micro-batch and made early in the next would be held twice. Tokens are small and may be
  // loaded ahead.
  int32_t EndInLastMicroBatch(BufferKey key) const {
    if (IsPersistent(key.kind) || key.kind == BufferKind::kTokens) return -1;
    --key.micro_batch;
    const auto last = buffers_.find(key);
    return last == buffers_.end() || last->second.live ? -1 : last->second.last_write;
  }

  // The memory that this lane cannot reuse yet is what other lanes freed in instructions that it has not joined.
  void BoundUnjoinedFrees(Lane own, LaneClock& wanted) const {
    const LaneClock joined = Resolve(wanted, own, nullptr);
    for (size_t lane = 0; lane < kNumLanes; ++lane) {
      if (lane == Index(own)) continue;
      const std::vector<int32_t>& frees = frees_[lane];
      const auto unjoined = std::upper_bound(frees.begin(), frees.end(), joined[lane]);
      const int64_t excess = frees.end() - unjoined - options_.max_unjoined_frees;
      if (excess > 0) wanted[lane] = std::max(wanted[lane], *(unjoined + (excess - 1)));
    }
  }

  // ---- Uses.

  // Hazards with earlier Programs (compile.h).
  void Carry(CompiledInstruction& compiled) {
    const Instruction& instruction = compiled.instruction;
    for (const auto* keys : {&instruction.writes, &instruction.adds}) {
      for (const BufferKey& key : *keys) {
        History& history = buffers_[key];
        if (!IsPersistent(key.kind) || history.written) continue;
        if (Carries(compiled, key)) continue;
        compiled.carried.push_back({key, true});
      }
    }
    const unsigned lane = 1U << Index(instruction.lane);
    for (const BufferKey& key : instruction.reads) {
      History& history = buffers_[key];
      if (!IsPersistent(key.kind) || history.written || (history.carried_read_lanes & lane) != 0) continue;
      history.carried_read_lanes |= lane;
      if (!Carries(compiled, key)) compiled.carried.push_back({key, false});
    }
  }

  static bool Carries(const CompiledInstruction& compiled, const BufferKey& key) {
    return std::any_of(compiled.carried.begin(), compiled.carried.end(),
                       [&](const auto& carried) { return carried.key == key; });
  }

  BufferUse Read(const BufferKey& key) {
    const History& history = buffers_[key];
    TRIREME_CHECK(IsPersistent(key.kind) || history.live, "read before it was written: " + Describe(key));
    return UseOf(key, history);
  }

  BufferUse Write(const BufferKey& key, const Instruction& instruction, const LaneClock& clock, bool adds) {
    History& history = buffers_[key];
    const bool first = IsPersistent(key.kind) ? !history.written : !history.live;
    if (!IsPersistent(key.kind) && !history.live) {
      history.live = true;
      history.life = lives_.size();
      lives_.push_back(
          {key, options_.bytes(key), instruction.id, kNeverEnds, instruction.lane, instruction.lane, clock});
      if (options_.pool_bytes) pool_bytes_ += options_.pool_bytes(key);
    }
    history.written = true;
    BufferUse use = UseOf(key, history);
    use.first_add = adds && first;
    return use;
  }

  // A transient buffer's offset is the index of its life until PlaceBuffers.
  BufferUse UseOf(const BufferKey& key, const History& history) const {
    if (IsPersistent(key.kind)) return {key, -1, options_.bytes(key), false};
    return {key, static_cast<int64_t>(history.life), lives_[history.life].bytes, false};
  }

  void PlaceBuffers() {
    std::vector<int64_t> offsets(lives_.size());
    compiled_.arena_bytes = Pack(/*host=*/false, offsets);
    compiled_.host_arena_bytes = Pack(/*host=*/true, offsets);
    for (CompiledInstruction& compiled : compiled_.instructions) {
      for (auto* uses : {&compiled.reads, &compiled.writes, &compiled.adds}) {
        for (BufferUse& use : *uses) {
          if (!IsPersistent(use.key.kind)) use.offset = offsets[static_cast<size_t>(use.offset)];
        }
      }
    }
  }

  // Fills the offsets of the lives in one of the two arenas (of the device's what is there at its peak, too), and
  // returns its size.
  int64_t Pack(bool host, std::vector<int64_t>& offsets) {
    std::vector<Life> lives;
    std::vector<size_t> indices;
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (InHostArena(lives_[i].key.kind) != host) continue;
      lives.push_back(lives_[i]);
      indices.push_back(i);
    }
    const Packing packing = PackArena(lives, options_.alignment);
    for (size_t i = 0; i < indices.size(); ++i) offsets[indices[i]] = packing.offsets[i];
    for (const size_t i : packing.at_peak) {
      if (!host) compiled_.arena_at_peak.push_back({lives[i].key, packing.offsets[i], lives[i].bytes, false});
    }
    return packing.arena_bytes;
  }

  void Record(const Instruction& instruction) {
    for (const BufferKey& key : instruction.reads) {
      History& history = buffers_[key];
      history.reads[Index(instruction.lane)] = instruction.id;
      history.last_use[Index(instruction.lane)] = instruction.id;
    }
    for (const auto* keys : {&instruction.writes, &instruction.adds, &instruction.frees}) {
      for (const BufferKey& key : *keys) {
        History& history = buffers_[key];
        history.last_write = instruction.id;
        history.reads = kNothing;
        history.last_use[Index(instruction.lane)] = instruction.id;
      }
    }
    if (!instruction.frees.empty()) frees_[Index(instruction.lane)].push_back(instruction.id);
  }

  void Free(const Instruction& instruction, const BufferKey& key) {
    History& history = buffers_[key];
    TRIREME_CHECK(!IsPersistent(key.kind) && history.live, "freed without being live: " + Describe(key));
    lives_[history.life].end = instruction.id;
    lives_[history.life].end_lane = instruction.lane;
    if (options_.pool_bytes) pool_bytes_ -= options_.pool_bytes(key);
    history.live = false;
  }

  const Program& program_;
  const CompileOptions& options_;
  CompiledProgram compiled_;
  std::unordered_map<BufferKey, History, Hash> buffers_;
  std::vector<Life> lives_;
  std::array<LaneClock, kNumLanes> lane_clocks_;  // what each lane's next instruction knows without waiting
  std::vector<LaneClock> start_clocks_;           // what each instruction knows when it starts
  std::array<std::vector<int32_t>, kNumLanes> frees_;
  int64_t pool_bytes_ = 0;
};

}  // namespace

CompiledProgram Compile(const Program& program, const CompileOptions& options) {
  return Compiler(program, options).Compile();
}

}  // namespace trireme
