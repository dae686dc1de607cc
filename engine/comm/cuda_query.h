// What cudaEventQuery and cudaStreamQuery say, where "not ready" is an answer and no error.
//   if (Answer(cudaEventQuery(event)) == cudaErrorNotReady) ...
#pragma once
#include <cuda_runtime_api.h>

namespace trireme {

// CUDA remembers it as this thread's last error, and the check behind the next kernel would report it.
inline cudaError_t Answer(cudaError_t status) {
  if (status == cudaErrorNotReady) cudaGetLastError();
  return status;
}

}  // namespace trireme
