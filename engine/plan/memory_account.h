// Bytes of one rank by class, at the moments when a run takes most. Filled by AccountMemory of engine/schedule, since
// what is live together is the compiled Program's business.
//   const MemoryByClass bytes = ByClass(plan.memory, MemoryMoment::kStep);
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trireme {

enum class MemoryClass : uint8_t {
  // Persistent.
  kWeights,
  kGradients,
  kMasterWeights,
  kMoments,
  // In the arena.
  kActivations,  // in flight: what forward passes leave for backward passes
  kGathered,     // parameters: whole weights of a few units (ZeRO 3), shards on their way to the device
  kBuckets,      // whole gradients of a few units (ZeRO 2, 3) and the staging of their reductions
  kBoundaries,   // between units and stages, their gradients, and kept inputs; token ids
  kGaps,         // between buffers: alignment, and places that lanes may not share
  // Scratch of the compute lane: one place, as large as the hungriest unit's.
  kLogits,  // a chunk of them, and of their gradients
  kWorkspace,
  // In LibTorch's pool: what its kernels return.
  kAttention,
  kTables,  // cosines and sines of rotary positions
  kCopies,  // units and tensors on their way while a run begins or saves
  // Outside of LibTorch's allocator.
  kCommunicator,
  kContext,  // the driver's, with kernels and libraries
};
constexpr size_t kNumMemoryClasses = static_cast<size_t>(MemoryClass::kContext) + 1;
using MemoryByClass = std::array<int64_t, kNumMemoryClasses>;
std::string_view Name(MemoryClass memory_class);      // "master weights"
std::string_view JsonName(MemoryClass memory_class);  // "master_weights"

enum class MemoryMoment : uint8_t { kInitialise, kStep, kSave };
constexpr size_t kNumMemoryMoments = 3;
std::string_view Name(MemoryMoment moment);  // "initialisation"

// What a GPU holds for a process beside what it allocates: context, loaded kernels, memory of cuBLASLt and cuDNN.
// Measured on an H200 (CUDA 13.0) as what the driver counts beside LibTorch's memory: 701 MiB of a run alone, 707 MiB
// of each of two ranks that share the GPU, whatever the model.
constexpr int64_t kContextBytes = int64_t{704} << 20;
// Of one NCCL communicator of more than one rank. Measured on two H200 over NVLink (NCCL 2.28) in runs with one, two
// and three of them: 761, 1252 and 1897 MiB. Fewer channels, as over PCIe, take less. Gloo, and ranks that share a GPU,
// take none.
constexpr int64_t kCommunicatorBytes = int64_t{640} << 20;

struct MemoryAccount {
  int64_t weights = 0, master_weights = 0, moments = 0, gradients = 0;  // persistent
  int64_t arena = 0;      // the compiled Program's peak: all that is transient
  int64_t workspace = 0;  // scratch of the compute lane
  int64_t pool = 0;       // tensors that LibTorch returns (attention), at their peak
  int64_t tables = 0;     // cosines and sines of rotary positions
  // What this rank's program allocates on the device in a step.
  int64_t total() const { return weights + master_weights + moments + gradients + arena + workspace + pool + tables; }

  // Of `arena`, where most of it is live; the rest are gaps.
  struct Arena {
    int64_t activations = 0, gathered = 0, buckets = 0, boundaries = 0;
    int64_t live() const { return activations + gathered + buckets + boundaries; }
  } of_arena;
  int64_t logits = 0;  // of `workspace`: the head's chunk
  // Beside total(): what exporting the model takes that the arena, which is idle then, has no room for.
  int64_t saving = 0;
  // On a GPU, beside total(): estimates.
  int64_t communicator = 0, context = 0;
  int64_t with_overhead() const { return total() + communicator + context; }

  struct Host {
    int64_t weights = 0, master_weights = 0, moments = 0, gradients = 0;  // persistent
    int64_t arena = 0;                                                    // what is on its way to the device
    int64_t boundaries = 0;                                               // of `arena`: kept inputs
    int64_t disk = 0;                                                     // in files: no part of the total
    int64_t total() const { return weights + master_weights + moments + gradients + arena; }
    // Beside the total, for a while.
    int64_t initialising = 0, saving = 0;
    int64_t peak() const { return total() + (initialising > saving ? initialising : saving); }
  } host;  // offloaded
};

// On the device; by class, zeros too.
MemoryByClass ByClass(const MemoryAccount& account, MemoryMoment moment);
MemoryByClass HostByClass(const MemoryAccount& account, MemoryMoment moment);  // offloaded
int64_t SumOf(const MemoryByClass& bytes);

// The class that takes most.
MemoryClass LargestOf(const MemoryByClass& bytes);

}  // namespace trireme
