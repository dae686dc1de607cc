#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

class NormTest : public KernelTest {};

const std::vector<int64_t> kWidths = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 33, 64, 200, 1032};

TEST_P(NormTest, ForwardAndBackwardEqualAutograd) {
  for (int64_t width : kWidths) {
    const int64_t rows = width % 2 == 0 ? 5 : 130;
    const at::Tensor x = Random({rows, width}) + 1, weight = Random({width}), bias = Random({width}),
                     dy = Random({rows, width});
    const at::Tensor residual = Random({rows, width});
    const at::Tensor y = Empty({rows, width}), mean = Empty({rows}, Statistics()), rstd = Empty({rows}, Statistics());
    LayerNormForward(x, weight, bias, 1e-5, y, mean, rstd);
    at::Tensor x_ref = Exact(x).requires_grad_(), w_ref = Exact(weight).requires_grad_(),
               b_ref = Exact(bias).requires_grad_();
    const at::Tensor y_ref = at::layer_norm(x_ref, {width}, w_ref, b_ref, 1e-5);
    y_ref.backward(Exact(dy));
    EXPECT_LT(RelativeError(y, y_ref.detach()), Tolerance()) << width;
    EXPECT_LT(RelativeError(mean, x_ref.detach().mean(1)), StatisticsTolerance()) << width;

    const at::Tensor dx = Empty({rows, width});
    const at::Tensor dweight = Empty({width}, Statistics()), dbias = Empty({width}, Statistics());
    LayerNormBackward(dy, x, mean, rstd, weight, {}, dx, dweight, dbias, false);
    // Widths 1 and 2: the normalised row is 0 or +-1 whatever x is, so dx is 0 but for rounding.
    if (width > 2) {
      EXPECT_LT(RelativeError(dx, x_ref.grad()), 3 * Tolerance()) << width;
      EXPECT_LT(RelativeError(dweight, w_ref.grad()), StatisticsTolerance()) << width;
    }
    EXPECT_LT(RelativeError(dbias, b_ref.grad()), StatisticsTolerance()) << width;
    const at::Tensor dx_residual = residual.clone();
    LayerNormBackward(dy, x, mean, rstd, weight, dx_residual, dx_residual, dweight, dbias, true);
    if (width > 2) {
      EXPECT_LT(RelativeError(dx_residual, x_ref.grad() + Exact(residual)), 3 * Tolerance()) << width;
      EXPECT_LT(RelativeError(dweight, 2 * w_ref.grad()), StatisticsTolerance()) << width;
    }
    EXPECT_LT(RelativeError(dbias, 2 * b_ref.grad()), StatisticsTolerance()) << width;
  }
}

TEST_P(NormTest, RmsNormEqualsAutograd) {
  for (int64_t width : kWidths) {
    const int64_t rows = width % 2 == 0 ? 5 : 130;
    const at::Tensor x = Random({rows, width}) + 1, weight = Random({width}), dy = Random({rows, width});
    const at::Tensor residual = Random({rows, width}), y = Empty({rows, width}), rstd = Empty({rows}, Statistics());
    RmsNormForward(x, weight, 1e-5, y, rstd);
    at::Tensor x_ref = Exact(x).requires_grad_(), w_ref = Exact(weight).requires_grad_();
    const at::Tensor rstd_ref = (x_ref.square().mean(1, true) + 1e-5).rsqrt();
    const at::Tensor y_ref = x_ref * rstd_ref * w_ref;
    y_ref.backward(Exact(dy));
    EXPECT_LT(RelativeError(y, y_ref.detach()), Tolerance()) << width;
    EXPECT_LT(RelativeError(rstd, rstd_ref.detach().squeeze(1)), StatisticsTolerance()) << width;

    const at::Tensor dx = Empty({rows, width}), dweight = Empty({width}, Statistics());
    RmsNormBackward(dy, x, rstd, weight, {}, dx, dweight, false);
    // Width 1: the normalised row is +-1 whatever x is, so dx is 0 but for rounding.
    if (width > 1) {
      EXPECT_LT(RelativeError(dx, x_ref.grad()), 3 * Tolerance()) << width;
    }
    EXPECT_LT(RelativeError(dweight, w_ref.grad()), StatisticsTolerance()) << width;
    const at::Tensor dx_residual = residual.clone();
    RmsNormBackward(dy, x, rstd, weight, dx_residual, dx_residual, dweight, true);
    if (width > 1) {
      EXPECT_LT(RelativeError(dx_residual, x_ref.grad() + Exact(residual)), 3 * Tolerance()) << width;
    }
    EXPECT_LT(RelativeError(dweight, 2 * w_ref.grad()), StatisticsTolerance()) << width;
    const at::Tensor narrow = Empty({width});
    RmsNormBackward(dy, x, rstd, weight, {}, dx, dweight, false);
    RmsNormBackward(dy, x, rstd, weight, {}, dx, narrow, false);
    EXPECT_TRUE(BitwiseEqual(narrow, dweight.to(Type()))) << width;
  }
}

TEST_P(NormTest, GradientsInTheComputeType) {
  const at::Tensor x = Random({9, 40}), weight = Random({40}), dy = Random({9, 40});
  const at::Tensor mean = Empty({9}, Statistics()), rstd = Empty({9}, Statistics());
  LayerNormForward(x, weight, weight, 1e-5, Empty({9, 40}), mean, rstd);
  const at::Tensor wide = Empty({40}, Statistics()), wide_bias = Empty({40}, Statistics()), narrow = Empty({40}),
                   narrow_bias = Empty({40});
  const at::Tensor dx = Empty({9, 40});
  LayerNormBackward(dy, x, mean, rstd, weight, {}, dx, wide, wide_bias, false);
  LayerNormBackward(dy, x, mean, rstd, weight, {}, dx, narrow, narrow_bias, false);
  EXPECT_TRUE(BitwiseEqual(narrow, wide.to(Type())));
  EXPECT_TRUE(BitwiseEqual(narrow_bias, wide_bias.to(Type())));
}

TRIREME_INSTANTIATE_KERNEL_TEST(NormTest);

}  // namespace
}  // namespace trireme::kernels
