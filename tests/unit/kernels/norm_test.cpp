#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

class NormTest : public KernelTest {};
class GeluTest : public KernelTest {};

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
    EXPECT_LT(RelativeError(mean, x_ref.detach().mean(1)), Type() == at::kDouble ? 1e-13 : 1e-5) << width;

    const at::Tensor dx = Empty({rows, width});
    const at::Tensor dweight = Empty({width}, Statistics()), dbias = Empty({width}, Statistics());
    LayerNormBackward(dy, x, mean, rstd, weight, {}, dx, dweight, dbias, false);
    // Widths 1 and 2: the normalised row is 0 or +-1 whatever x is, so dx is 0 but for rounding.
    if (width > 2) {
      EXPECT_LT(RelativeError(dx, x_ref.grad()), 3 * Tolerance()) << width;
      EXPECT_LT(RelativeError(dweight, w_ref.grad()), Type() == at::kDouble ? 1e-13 : 1e-5) << width;
    }
    EXPECT_LT(RelativeError(dbias, b_ref.grad()), Type() == at::kDouble ? 1e-13 : 1e-5) << width;
    const at::Tensor dx_residual = residual.clone();
    LayerNormBackward(dy, x, mean, rstd, weight, dx_residual, dx_residual, dweight, dbias, true);
    if (width > 2) {
      EXPECT_LT(RelativeError(dx_residual, x_ref.grad() + Exact(residual)), 3 * Tolerance()) << width;
      EXPECT_LT(RelativeError(dweight, 2 * w_ref.grad()), Type() == at::kDouble ? 1e-13 : 1e-5) << width;
    }
    EXPECT_LT(RelativeError(dbias, 2 * b_ref.grad()), Type() == at::kDouble ? 1e-13 : 1e-5) << width;
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

TEST_P(GeluTest, EqualsAutogradAndTailsEqualBodies) {
  const at::Tensor whole = Random({1000}) * 3, gradient = Random({1000});
  const at::Tensor act = Empty({1000}), dfc = Empty({1000});
  GeluTanhForward(whole, act);
  GeluTanhBackward(whole, gradient, dfc);
  at::Tensor x_ref = Exact(whole).requires_grad_();
  const at::Tensor want = at::gelu(x_ref, "tanh");
  want.backward(Exact(gradient));
  EXPECT_LT(RelativeError(act, want.detach()), Tolerance());
  EXPECT_LT(RelativeError(dfc, x_ref.grad()), Tolerance());
  for (int64_t begin = 0; begin < 3; ++begin) {
    for (int64_t count = 1; count <= 33; ++count) {
      const at::Tensor part = Empty({count}), dpart = gradient.narrow(0, begin, count).clone();
      const at::Tensor input = whole.narrow(0, begin, count).clone();
      GeluTanhForward(input, part);
      GeluTanhBackward(input, dpart, dpart);
      EXPECT_TRUE(BitwiseEqual(part, act.narrow(0, begin, count))) << begin << "+" << count;
      EXPECT_TRUE(BitwiseEqual(dpart, dfc.narrow(0, begin, count))) << begin << "+" << count;
    }
  }
}

TEST_P(GeluTest, FarValuesAndNotANumber) {
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor x =
      at::tensor({-1e4, -60.0, 60.0, 1e4, std::nan("")}, at::kDouble).to(Type()).to(Options().device());
  const at::Tensor y = Empty({5}), dx = Empty({5});
  GeluTanhForward(x, y);
  GeluTanhBackward(x, at::ones_like(x), dx);
  const at::Tensor got = Exact(y), slope = Exact(dx);
  EXPECT_NEAR(got[0].item<double>(), 0, 1e-30);
  EXPECT_NEAR(got[1].item<double>(), 0, 1e-30);
  EXPECT_EQ(got[2].item<double>(), Exact(x)[2].item<double>());
  EXPECT_EQ(got[3].item<double>(), Exact(x)[3].item<double>());
  EXPECT_TRUE(std::isnan(got[4].item<double>()));
  EXPECT_NEAR(slope[0].item<double>(), 0, 1e-20);
  EXPECT_EQ(slope[3].item<double>(), 1);
  EXPECT_TRUE(std::isnan(slope[4].item<double>()));
  EXPECT_LT(got.slice(0, 0, 4).abs().max().item<double>(), infinity);
}

TRIREME_INSTANTIATE_KERNEL_TEST(NormTest);
TRIREME_INSTANTIATE_KERNEL_TEST(GeluTest);

}  // namespace
}  // namespace trireme::kernels
