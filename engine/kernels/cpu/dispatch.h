// From tensors to typed pointers, and threads over ranges. For cpu/*.cpp.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/kernels/cpu/vectors.h"

namespace trireme::kernels {

// f(T{}) with the element type of a tensor. A further type is one line here, one in element.h, one instantiation in
// *_vectors.cpp.
template <typename F>
void ForType(at::ScalarType type, F&& f) {
  switch (type) {
    case at::kDouble:
      return f(double{});
    case at::kFloat:
      return f(float{});
    case at::kBFloat16:
      return f(BFloat16{});
    case at::kHalf:
      return f(Float16{});
    default:
      TRIREME_CHECK(false, std::string("no kernel for ") + c10::toString(type));
  }
}

template <typename T>
T* Data(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}

// f(begin, end) on threads; each gets about kGrain elements of `cost` each or more.
template <typename F>
void Parallel(int64_t count, int64_t cost, F&& f) {
  constexpr int64_t kGrain = 16384;
  if (count > 0) at::parallel_for(0, count, std::max<int64_t>(1, kGrain / std::max<int64_t>(cost, 1)), f);
}

// target[i] = or += sums[i].
template <typename A, typename G>
void WriteSums(const A* sums, G* target, int64_t count, bool add) {
  AtLevel([&](auto level) {
    if (add) {
      CastVectors<decltype(level), A, G>::Add(sums, target, count);
    } else {
      CastVectors<decltype(level), A, G>::Copy(sums, target, count);
    }
  });
}

}  // namespace trireme::kernels
