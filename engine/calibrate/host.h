// Of the machine around the devices: copies to and from them, its memory by threads, its disk.
#pragma once
#include <filesystem>
#include <memory>

#include "engine/calibrate/compute.h"
#include "engine/zero/host_memory.h"

namespace trireme::calibrate {

// All ranks at once: `sharing` of them share the device that the rates are of.
void MeasureHostLink(const Stopwatch& watch, const Sizes& sizes, int64_t sharing, HostLinkDescription& link,
                     Figures& figures);
// One rank alone, on the host's cores. `page_lock`: of offloaded states; null where they lie in plain memory.
void MeasureHostMemory(RankWorld& alone, const Sizes& sizes, const std::shared_ptr<PageLock>& page_lock,
                       HostDescription& host, Figures& figures);
void MeasureDisk(const std::filesystem::path& folder, const Sizes& sizes, DiskDescription& disk, Figures& figures);

}  // namespace trireme::calibrate
