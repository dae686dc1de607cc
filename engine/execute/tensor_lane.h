// The lane `tp`: collectives that units issue themselves (engine/model/tensor_parallel.h).
#pragma once
#include <c10/core/Device.h>

#include <memory>

#include "engine/comm/communicator.h"
#include "engine/model/tensor_parallel.h"

namespace trireme {

// On the CPU an operation is done when its call returns; on a GPU it runs on a stream of its own. `comm` must outlive
// it.
std::unique_ptr<TensorParallel> MakeTensorLane(Communicator& comm, at::Device device);

}  // namespace trireme
