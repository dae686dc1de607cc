#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

class LinearTest : public KernelTest {};

TEST_P(LinearTest, ForwardAndBackwardEqualMatmul) {
  const std::vector<std::array<int64_t, 3>> shapes = {{1, 1, 1}, {3, 5, 7}, {17, 31, 33}, {64, 48, 96}, {130, 64, 8}};
  for (const auto& [rows, in, out] : shapes) {
    const at::Tensor x = Random({rows, in}), w = Random({out, in}), bias = Random({out}),
                     residual = Random({rows, out});
    const at::Tensor plain = Exact(x).matmul(Exact(w).t());
    const at::Tensor y = Empty({rows, out});
    LinearForward(x, w, {}, {}, y);
    EXPECT_LT(RelativeError(y, plain), Tolerance());
    LinearForward(x, w, bias, {}, y);
    EXPECT_LT(RelativeError(y, plain + Exact(bias)), Tolerance());
    LinearForward(x, w, bias, residual, y);
    EXPECT_LT(RelativeError(y, plain + Exact(bias) + Exact(residual)), Tolerance());
    const at::Tensor dy = Random({rows, out}), dx = Empty({rows, in});
    LinearBackwardInput(dy, w, dx);
    EXPECT_LT(RelativeError(dx, Exact(dy).matmul(Exact(w))), Tolerance());
    const at::Tensor want = Exact(dy).t().matmul(Exact(x));
    for (at::ScalarType type : {Type(), Statistics()}) {
      const at::Tensor dw = Empty({out, in}, type), dbias = Empty({out}, type);
      // Room for two rows and a half: the product goes through it in pieces.
      const at::Tensor workspace = at::empty({in * 5}, Options().dtype(at::kByte));
      LinearBackwardWeight(dy, x, dw, false, workspace);
      LinearBackwardBias(dy, dbias, false);
      EXPECT_LT(RelativeError(dw, want), Tolerance());
      EXPECT_LT(RelativeError(dbias, Exact(dy).sum(0)), Tolerance());
      LinearBackwardWeight(dy, x, dw, true, workspace);
      LinearBackwardBias(dy, dbias, true);
      EXPECT_LT(RelativeError(dw, 2 * want), Tolerance());
      EXPECT_LT(RelativeError(dbias, 2 * Exact(dy).sum(0)), Tolerance());
    }
  }
}

// 256 micro-batches, a gradient of 1 and then 2^-9 each: the fp32 sum is exact, a bf16 sum stays at 1.
TEST_P(LinearTest, NUM_15_SmallMicroBatchesCountInTheAccumulationType) {
  const at::Tensor dy = at::ones({1, 8}, Options().dtype(Type())), x = at::ones({1, 8}, Options().dtype(Type()));
  const at::Tensor small = x * 0x1p-9, workspace = at::empty({1024}, Options().dtype(at::kByte));
  for (at::ScalarType type : {Type(), Statistics()}) {
    const at::Tensor dw = Empty({8, 8}, type), dbias = Empty({8}, type);
    LinearBackwardWeight(dy, x, dw, false, workspace);
    LinearBackwardBias(dy, dbias, false);
    for (int micro_batch = 1; micro_batch < 256; ++micro_batch) {
      LinearBackwardWeight(dy, small, dw, true, workspace);
      LinearBackwardBias(small, dbias, true);
    }
    const double want = type == at::kBFloat16 ? 1 : 1 + 255 * 0x1p-9;
    EXPECT_EQ(Exact(dw).min().item<double>(), want);
    EXPECT_EQ(Exact(dw).max().item<double>(), want);
    EXPECT_EQ(Exact(dbias).max().item<double>(), want);
  }
}

TEST_P(LinearTest, LargeProductsOverflowInsteadOfSaturating) {
  const at::Tensor large = at::full({4, 4}, 300.0, Options().dtype(Type())), y = Empty({4, 4});
  const at::Tensor workspace = at::empty({1024}, Options().dtype(at::kByte)), dweight = Empty({4, 4});
  LinearForward(large, large, {}, {}, y);
  LinearBackwardWeight(large, large, dweight, false, workspace);
  for (const at::Tensor& product : {y, dweight}) {
    EXPECT_EQ(std::isinf(Exact(product).min().item<double>()), Type() == at::kHalf);
  }
}

TRIREME_INSTANTIATE_KERNEL_TEST(LinearTest);

}  // namespace
}  // namespace trireme::kernels
