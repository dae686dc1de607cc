// What host-staged communication (host_staged.cpp) asks of a device: copies and waits that run on the caller's streams.
// A GPU's is MakeCudaStagingDevice; tests play one with threads.
//   device.CopyAsync(tensor, host, bytes, stream);  Signal s = device.SignalAsync(stream);
//   ... another thread: Signalled(s) becomes true, it works on `host`, and calls SetFlag(7)
//   device.AwaitFlagAsync(7, stream);  device.CopyAsync(host, tensor, bytes, stream);
//
// Only SetFlag and the calls on signals may come from another thread than the one that enqueues.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/comm/communicator.h"

namespace trireme {

class StagingDevice {
 public:
  using Signal = void*;

  virtual ~StagingDevice() = default;
  virtual bool Owns(const at::Tensor& tensor) const = 0;
  // Host memory that the device copies to and from while the host goes on; freed with the device.
  virtual std::byte* Allocate(int64_t bytes) = 0;
  virtual void EnterThread() {}  // called once by the thread that works on the host

  virtual void CopyAsync(const void* from, void* to, int64_t bytes, CommStream stream) = 0;
  // Becomes true when all that stands on the stream before it is done. Signalled throws Error{kDevice} COM018 if the
  // device has failed; Recycle ends the use of a signal.
  virtual Signal SignalAsync(CommStream stream) = 0;
  virtual bool Signalled(Signal signal) = 0;
  virtual void Recycle(Signal signal) noexcept = 0;

  // Whether a stream can wait for the flag. Where it cannot, the calling thread waits before it enqueues the rest.
  virtual bool StreamsWait(CommStream stream) const = 0;
  // The stream waits until the flag has come to `number` or gone past it; numbers wrap around, so that a flag is past
  // all numbers up to 2^31 below it.
  virtual void AwaitFlagAsync(uint32_t number, CommStream stream) = 0;
  virtual void SetFlag(uint32_t number) noexcept = 0;

  // What comes next on `stream` waits for the last MarkEnd, if that was on another stream.
  virtual void FollowAsync(CommStream stream) = 0;
  virtual void MarkEnd(CommStream stream) = 0;
  virtual bool Ended() = 0;  // whether all before the last MarkEnd is done
};

}  // namespace trireme
