#include "engine/kernels/cuda/context.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <string>
#include <utility>

#include "engine/base/error.h"

namespace trireme::kernels::cuda {
namespace {

Scratch ScratchOf(std::map<std::pair<int, cudaStream_t>, at::Tensor>& kept, int64_t bytes) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  at::Tensor& tensor = kept[{stream.device_index(), stream.stream()}];
  if (!tensor.defined()) tensor = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(stream.device()));
  return {tensor.mutable_data_ptr(), bytes};
}

}  // namespace

cudaStream_t CurrentStream() { return c10::cuda::getCurrentCUDAStream().stream(); }

Scratch SumScratch() {
  thread_local std::map<std::pair<int, cudaStream_t>, at::Tensor> kept;
  return ScratchOf(kept, int64_t{4} << 20);
}

Scratch ProductScratch() {
  thread_local std::map<std::pair<int, cudaStream_t>, at::Tensor> kept;
  return ScratchOf(kept, int64_t{32} << 20);
}

Element ElementOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return Element::kFloat64;
    case at::kFloat:
      return Element::kFloat32;
    case at::kBFloat16:
      return Element::kBFloat16;
    case at::kHalf:
      return Element::kFloat16;
    default:
      TRIREME_CHECK(false, std::string("no kernel for ") + c10::toString(tensor.scalar_type()));
  }
}

}  // namespace trireme::kernels::cuda
