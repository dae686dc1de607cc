// Within one layout: which units keep their activations, which make them once more, whose optimizer states lie on the
// host, and how far weights are gathered ahead, so that planned memory just fits.
//   Filled filled = Fill(job, job.config, {.limit_bytes = MemoryLimit(capacity)});  if (filled.fits) ...
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/advise/layout.h"

namespace trireme {

// Of a device's memory, what the driver, the libraries and their own scratch take; a plan above this share of the rest
// is called tight. A plan that is to fit stays below.
constexpr double kReservedBytes = 1e9;
constexpr double kTightShare = 0.95;
int64_t MemoryLimit(double device_bytes, double share = kTightShare);  // share 1: tight ones too

struct FillOptions {
  int64_t limit_bytes = 0;               // of the fullest rank's MemoryAccount::total()
  int64_t host_limit_bytes = INT64_MAX;  // of its MemoryAccount::Host::peak()
  bool may_offload = true;               // the device has a host beside it whose memory is another
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

// The same for recomputation alone: offloading and prefetch stay as `config` has them.
std::optional<Filled> FillRecompute(const Job& job, const Config& config, const FillOptions& options,
                                    std::string* why = nullptr);

// From ZeRO 1 on, and not Lamb, whose halves of an update meet norms of whole tensors between them.
bool CanOffloadOptimizer(const Config& config, const FillOptions& options);

// offload_optimizer.ratio that moves the states of the last `units` units of a stage (0: none, the most: all).
double RatioOfUnits(const Plan& plan, int units);
int UnitsOfLargestStage(const Plan& plan);

}  // namespace trireme
