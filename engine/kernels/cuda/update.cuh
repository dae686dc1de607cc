// What the updates' kernels share. For *.cu that are compiled without contraction.
#pragma once
#include "engine/kernels/cuda/device.cuh"
#include "engine/kernels/step_state.h"

namespace trireme::kernels::cuda {

constexpr int kThreads = 256;

__device__ inline float Root(float x) { return sqrtf(x); }
__device__ inline double Root(double x) { return sqrt(x); }

__device__ inline int64_t TableRow(const UpdateArguments& a) {
  const auto row = static_cast<int64_t>(a.state[kAppliedSteps]) - 1;
  return row < 0 ? 0 : (row >= a.table_rows ? a.table_rows - 1 : row);
}

// f(T{}) of a gradient or of weights beside an fp32 master.
template <typename F>
void ForNarrowOrFloat(Element type, F&& f) {
  if (type == Element::kBFloat16) return f(__nv_bfloat16{});
  if (type == Element::kFloat16) return f(__half{});
  f(float{});
}

}  // namespace trireme::kernels::cuda
