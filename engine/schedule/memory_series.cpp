#include "engine/schedule/memory_series.h"

#include <algorithm>
#include <map>

#include "engine/schedule/buffers.h"

namespace trireme {
namespace {

size_t Index(MemoryClass memory_class) { return static_cast<size_t>(memory_class); }

// Sums by class while each instruction runs.
std::vector<MemoryByClass> SumsOf(const std::vector<LiveBuffer>& buffers, size_t num_instructions) {
  std::vector<MemoryByClass> sums(num_instructions + 1);
  for (const LiveBuffer& buffer : buffers) {
    if (buffer.on_host) continue;
    sums[static_cast<size_t>(buffer.begin)][Index(buffer.memory_class)] += buffer.bytes;
    sums[static_cast<size_t>(buffer.end) + 1][Index(buffer.memory_class)] -= buffer.bytes;
  }
  for (size_t i = 1; i < sums.size(); ++i) {
    for (size_t c = 0; c < kNumMemoryClasses; ++c) sums[i][c] += sums[i - 1][c];
  }
  sums.pop_back();
  return sums;
}

}  // namespace

MemoryClass ClassOf(BufferKind kind) {
  switch (kind) {
    case BufferKind::kWeights:
      return MemoryClass::kWeights;
    case BufferKind::kMaster:
      return MemoryClass::kMoments;
    case BufferKind::kGradientSum:
    case BufferKind::kHostGradient:
      return MemoryClass::kGradients;
    case BufferKind::kUpdateNorms:
    case BufferKind::kHostState:
    case BufferKind::kStepState:
      return MemoryClass::kWorkspace;
    case BufferKind::kSaved:
    case BufferKind::kDeferred:
      return MemoryClass::kActivations;
    case BufferKind::kGathered:
    case BufferKind::kShard:
    case BufferKind::kHostWeights:
      return MemoryClass::kGathered;
    case BufferKind::kGradient:
    case BufferKind::kStaging:
      return MemoryClass::kBuckets;
    case BufferKind::kTokens:
    case BufferKind::kBoundary:
    case BufferKind::kBoundaryPart:
    case BufferKind::kBoundaryGradient:
    case BufferKind::kHostBoundary:
      return MemoryClass::kBoundaries;
  }
  return MemoryClass::kWorkspace;
}

std::vector<LiveBuffer> LiveBuffersOf(const Plan& plan, const CompiledProgram& program) {
  std::vector<LiveBuffer> buffers;
  std::map<BufferKey, std::vector<size_t>> live;  // indices into `buffers`
  const auto last = static_cast<int32_t>(program.instructions.size()) - 1;
  for (const CompiledInstruction& compiled : program.instructions) {
    const int32_t id = compiled.instruction.id;
    for (const auto* uses : {&compiled.writes, &compiled.adds}) {
      for (const BufferUse& use : *uses) {
        if (IsPersistent(use.key.kind)) continue;
        const auto [entry, is_new] = live.try_emplace(use.key);
        if (!is_new) continue;
        const auto add = [&](MemoryClass memory_class, int64_t bytes) {
          if (bytes == 0) return;
          entry->second.push_back(buffers.size());
          buffers.push_back({use.key, memory_class, bytes, id, last, InHostArena(use.key.kind)});
        };
        add(ClassOf(use.key.kind), use.bytes);
        add(MemoryClass::kAttention, PoolBytes(plan, use.key));
      }
    }
    for (const BufferKey& key : compiled.instruction.frees) {
      const auto found = live.find(key);
      if (found == live.end()) continue;
      for (const size_t index : found->second) buffers[index].end = id;
      live.erase(found);
    }
  }
  return buffers;
}

std::vector<MemoryByClass> MemorySeries(const Plan& plan, const CompiledProgram& program) {
  const int pp_rank = plan.topology.CoordinateOf(program.rank).pp_rank;
  MemoryByClass always = ByClass(plan.memory_of_pp_rank.at(static_cast<size_t>(pp_rank)), MemoryMoment::kInitialise);
  for (const MemoryClass in_arena : {MemoryClass::kActivations, MemoryClass::kGathered, MemoryClass::kBuckets,
                                     MemoryClass::kBoundaries, MemoryClass::kGaps}) {
    always[Index(in_arena)] = 0;
  }
  std::vector<MemoryByClass> series = SumsOf(LiveBuffersOf(plan, program), program.instructions.size());
  for (MemoryByClass& bytes : series) {
    for (size_t c = 0; c < kNumMemoryClasses; ++c) bytes[c] += always[c];
  }
  return series;
}

// Buffers whose lives one lane knows to be apart, and another does not, may lie on each other: bytes count once.
MemoryAccount::Arena ArenaAtPeak(const CompiledProgram& program) {
  std::vector<BufferUse> uses = program.arena_at_peak;
  std::ranges::sort(uses, {}, &BufferUse::offset);
  MemoryByClass bytes{};
  int64_t covered = 0;
  for (const BufferUse& use : uses) {
    const int64_t end = use.offset + use.bytes;
    bytes[Index(ClassOf(use.key.kind))] += std::max<int64_t>(0, end - std::max(use.offset, covered));
    covered = std::max(covered, end);
  }
  return {.activations = bytes[Index(MemoryClass::kActivations)],
          .gathered = bytes[Index(MemoryClass::kGathered)],
          .buckets = bytes[Index(MemoryClass::kBuckets)],
          .boundaries = bytes[Index(MemoryClass::kBoundaries)]};
}

}  // namespace trireme
