// Shared by the tests of kernels: device and type as parameters, inputs from a seed, comparison with a reference made
// in fp64.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "engine/kernels/kernels.h"

namespace trireme::kernels {

// (on the GPU, element type)
class KernelTest : public ::testing::TestWithParam<std::tuple<bool, at::ScalarType>> {
 protected:
  void SetUp() override {
    if (OnGpu() && !at::hasCUDA()) GTEST_SKIP() << "no GPU, or a program without GPU code";
    at::manual_seed(7);
  }
  static bool OnGpu() { return std::get<0>(GetParam()); }
  static at::ScalarType Type() { return std::get<1>(GetParam()); }
  static at::ScalarType Statistics() { return Type() == at::kDouble ? at::kDouble : at::kFloat; }
  static at::TensorOptions Options() { return at::TensorOptions().device(OnGpu() ? at::kCUDA : at::kCPU); }
  static at::Tensor Random(at::IntArrayRef shape) {
    return at::randn(shape, at::kDouble).to(Type()).to(Options().device());
  }
  static at::Tensor Empty(at::IntArrayRef shape, at::ScalarType type) {  // NaN, so that what is not written shows
    return at::full(shape, std::numeric_limits<double>::quiet_NaN(), Options().dtype(type));
  }
  static at::Tensor Empty(at::IntArrayRef shape) { return Empty(shape, Type()); }
  static at::Tensor State() {
    at::Tensor state = at::empty({kStepStateSize}, Options().dtype(at::kDouble));
    InitStepState(state, 1);
    return state;
  }
  static bool Narrow() { return Type() == at::kBFloat16 || Type() == at::kHalf; }
  static double Tolerance() {
    switch (Type()) {
      case at::kDouble:
        return 1e-13;
      case at::kFloat:
        return 1e-5;
      case at::kHalf:
        return 2e-3;
      default:
        return 1e-2;
    }
  }
  static double StatisticsTolerance() { return Type() == at::kDouble ? 1e-13 : 1e-5; }
};

inline at::Tensor Exact(const at::Tensor& tensor) { return tensor.to(at::kCPU).to(at::kDouble); }

// The largest difference against the largest value of the reference.
inline double RelativeError(const at::Tensor& got, const at::Tensor& want) {
  if (want.numel() == 0) return 0;
  const double error = (Exact(got) - Exact(want)).abs().max().item<double>();
  const double scale = Exact(want).abs().max().item<double>();
  return error / std::max(scale, 1e-30);
}

inline bool BitwiseEqual(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kCPU).contiguous(), y = b.to(at::kCPU).contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

inline std::string CaseName(const ::testing::TestParamInfo<std::tuple<bool, at::ScalarType>>& info) {
  return c10::toString(std::get<1>(info.param));
}

#define TRIREME_INSTANTIATE_KERNEL_TEST(Suite)                                                                       \
  INSTANTIATE_TEST_SUITE_P(Cpu, Suite,                                                                               \
                           ::testing::Combine(::testing::Values(false),                                              \
                                              ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf)), \
                           CaseName);                                                                                \
  INSTANTIATE_TEST_SUITE_P(Gpu, Suite,                                                                               \
                           ::testing::Combine(::testing::Values(true),                                               \
                                              ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf)), \
                           CaseName)

}  // namespace trireme::kernels
