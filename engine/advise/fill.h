// Within one layout: which units keep their activations, which make them once more, whose optimizer states lie on the
// host, and how far weights are gathered ahead, so that planned memory just fits.
//   Filled filled = Fill(job, job.config, {.limit_bytes = MemoryLimit(capacity, scope), .scope = scope});
//   if (filled.fits) ...
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/advise/layout.h"

namespace trireme {

// What of a rank's memory is held against a limit.
enum class MemoryScope : uint8_t {
  kProgram,    // MemoryAccount::total(): the limit is one of LibTorch's allocator
  kProcess,    // and what a save takes for a while: a rank on the CPU
  kSharedGpu,  // and the context: ranks that share a GPU have no communicator of NCCL on it
  kGpu,        // and the communicators
};
int64_t BytesIn(const MemoryAccount& account, MemoryScope scope);
const MemoryAccount& FullestRank(const Plan& plan, MemoryScope scope);

// Of the share of the host's memory that a rank on the CPU has, what the system and the program itself take. A plan
// above kTightShare of what a rank may take is called tight, and one that is to fit stays below.
constexpr double kReservedBytes = 1e9;
constexpr double kTightShare = 0.95;
int64_t MemoryLimit(double bytes, MemoryScope scope, double share = kTightShare);  // share 1: tight ones too

struct FillOptions {
  int64_t limit_bytes = 0;               // of the fullest rank's BytesIn(scope)
  int64_t host_limit_bytes = INT64_MAX;  // of its MemoryAccount::Host::peak()
  bool may_offload = true;               // the device has a host beside it whose memory is another
  MemoryScope scope = MemoryScope::kProgram;

  int64_t Needs(const Plan& plan) const { return BytesIn(FullestRank(plan, scope), scope); }
  bool Fits(const Plan& plan) const {
    return Needs(plan) <= limit_bytes && plan.memory.host.peak() <= host_limit_bytes;
  }
};

struct Filled {
  Config config;  // with trireme.recompute, offload_optimizer and stage3_prefetch_bucket_size as chosen
  Plan plan;      // of `config`, with its memory. Where nothing fits: of the least that can be
  bool fits = false;
};

// Chooses in this order, each as little as it takes: gathers less far ahead (ZeRO 3; what it costs is latency), makes
// cheap activations again, makes whole layers again, moves optimizer states to the host (ZeRO 3: of as few units as it
// takes; 1 and 2: of all; Lamb's never). So a config that asks for more than it needs gets less. On each pipeline rank
// the first layers are made again wholly, then come those whose cheap parts are, then those that are kept: what the
// last layers keep is used first. On every rank one unit less would not fit. offload_param stays as it is.
// A pure function: all ranks that ask the same get the same. nullopt: the layout is none (*why).
std::optional<Filled> Fill(const Job& job, const Config& config, const FillOptions& options,
                           std::string* why = nullptr);

// "trireme": {"fill": true}: Fill of the job's own config, whose table of resolved values (Config::origins) then says
// what was chosen. nullopt: it is no layout.
std::optional<Filled> FillOwn(const Job& job, const FillOptions& options);
// "made again: cheap in 8 of 24 layers; optimizer offloaded: 0.25; planned 9 GiB of 10 GiB that a rank may take"
std::string DescribeFill(const Filled& filled, const FillOptions& options);

// Fill for recomputation alone: offloading and prefetch stay as `config` has them.
std::optional<Filled> FillRecompute(const Job& job, const Config& config, const FillOptions& options,
                                    std::string* why = nullptr);

// From ZeRO 1 on, and not Lamb, whose halves of an update meet norms of whole tensors between them.
bool CanOffloadOptimizer(const Config& config, const FillOptions& options);

// offload_optimizer.ratio that moves the states of the last `units` units of a stage (0: none, the most: all).
double RatioOfUnits(const Plan& plan, int units);
int UnitsOfLargestStage(const Plan& plan);

}  // namespace trireme
