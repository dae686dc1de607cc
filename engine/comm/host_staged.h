// Communication of ranks that share a GPU, which NCCL refuses: each operation copies its input to pinned host memory on
// the caller's stream, another back end carries it from there, and the result is copied back on the same stream.
//   auto device = MakeCudaStagingDevice(GpuSharers::kProcesses);
//   auto dp = MakeHostStagedCommunicator(MakeGlooCommunicator(store, ranks, rank, "dp0"), std::move(device));
//
// Ordered by streams: a call enqueues and returns. Behind its copy down stands a signal, which a thread of the
// communicator waits for; that thread runs the operation on the host and then raises a flag in pinned memory, for which
// the stream waits before it copies up. Operations of one group run first in, first out, on whatever streams; groups
// run side by side. Whatever fails, or aborts, raises the flag for good: no stream waits for ever, what it then copies
// is garbage, and CheckHealth tells.
//
// Where a stream cannot wait (the default stream, which all threads of a process share, and a driver without
// cuStreamWaitValue32) the call itself waits for the host's work: right, but lanes do not overlap then. So it does
// where the ranks are threads: streams of one process share queues to the copy engines, and one that waits in such a
// queue holds up the copy of another rank for which it waits (seen with three ranks on an H200). Nor may a stream wait
// while code comes to the device for the first time: CUDA loads kernels at their first launch, and may then wait for
// all streams of the process, also for one that waits for this very thread to go on. So the first run of a program is
// made under WaitOnHost. Waiting calls meet in the order of the ranks' programs, which is one order for all of them.
//
// Collectives go in parts of `staging_bytes`; transfers go whole, since both ends need not group them alike, through
// memory that grows to the largest post. For trying layouts: an all-reduce costs two copies and a reduction on one
// core.
#pragma once
#include <cstdint>
#include <memory>

#include "engine/comm/communicator.h"
#include "engine/comm/staging_device.h"

namespace trireme {

inline constexpr int64_t kStagingBytes = int64_t{32} << 20;

// `host` carries CPU tensors; group, rank and name are its. Errors are those of `host`, with this group's operation in
// front.
std::unique_ptr<Communicator> MakeHostStagedCommunicator(std::unique_ptr<Communicator> host,
                                                         std::unique_ptr<StagingDevice> device,
                                                         int64_t staging_bytes = kStagingBytes);

// From now on calls of this group wait, or not, although streams could. Nothing on other back ends.
void WaitOnHost(Communicator& group, bool waits);

enum class GpuSharers : uint8_t { kProcesses, kThreads };  // what the ranks are that share a GPU

// The calling thread's current CUDA device. Throws Error{kDevice}: COM017 in a program built without CUDA, COM018.
std::unique_ptr<StagingDevice> MakeCudaStagingDevice(GpuSharers sharers);

}  // namespace trireme
