// The lane `tp`: collectives that units issue themselves (engine/model/tensor_parallel.h).
#pragma once
#include <c10/core/Device.h>

#include <memory>

#include "engine/comm/communicator.h"
#include "engine/execute/trace.h"
#include "engine/model/tensor_parallel.h"

namespace trireme {

// Which instruction issues the operations that follow; null tracer: nothing is recorded. The executor sets it.
struct TensorLaneTrace {
  Tracer* tracer = nullptr;
  const Instruction* instruction = nullptr;
  int64_t step = 0;
};

// On the CPU an operation is done when its call returns; on a GPU it runs on a stream of its own. Both must
// outlive it.
std::unique_ptr<TensorParallel> MakeTensorLane(Communicator& comm, at::Device device, const TensorLaneTrace& trace);

}  // namespace trireme
