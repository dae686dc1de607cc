// What the GPU kernels need of the current stream: itself, scratch for partial sums and for cuBLASLt.
#pragma once
#include <ATen/core/Tensor.h>
#include <cuda_runtime_api.h>

#include "engine/kernels/cuda/launch.h"

namespace trireme::kernels::cuda {

cudaStream_t CurrentStream();
// Of the current stream and calling thread, allocated at the first use through LibTorch's allocator and kept: 4 MiB.
Scratch SumScratch();
// As above for cuBLASLt: 32 MiB, what it asks for on Hopper.
Scratch ProductScratch();

Element ElementOf(const at::Tensor& tensor);

}  // namespace trireme::kernels::cuda
