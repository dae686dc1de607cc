#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

class GeluTest : public KernelTest {};
class SwiGluTest : public KernelTest {};

struct Form {
  const char* approximate;  // at::gelu's name
  void (*forward)(const at::Tensor&, const at::Tensor&);
  void (*backward)(const at::Tensor&, const at::Tensor&, const at::Tensor&);
};
constexpr Form kForms[] = {{"tanh", GeluTanhForward, GeluTanhBackward}, {"none", GeluForward, GeluBackward}};

TEST_P(GeluTest, EqualsAutogradAndTailsEqualBodies) {
  for (const Form& form : kForms) {
    const at::Tensor whole = Random({1000}) * 3, gradient = Random({1000});
    const at::Tensor act = Empty({1000}), dfc = Empty({1000});
    form.forward(whole, act);
    form.backward(whole, gradient, dfc);
    at::Tensor x_ref = Exact(whole).requires_grad_();
    const at::Tensor want = at::gelu(x_ref, form.approximate);
    want.backward(Exact(gradient));
    EXPECT_LT(RelativeError(act, want.detach()), Tolerance());
    EXPECT_LT(RelativeError(dfc, x_ref.grad()), Tolerance());
    for (int64_t begin = 0; begin < 3; ++begin) {
      for (int64_t count = 1; count <= 33; ++count) {
        const at::Tensor part = Empty({count}), dpart = gradient.narrow(0, begin, count).clone();
        const at::Tensor input = whole.narrow(0, begin, count).clone();
        form.forward(input, part);
        form.backward(input, dpart, dpart);
        EXPECT_TRUE(BitwiseEqual(part, act.narrow(0, begin, count))) << begin << "+" << count;
        EXPECT_TRUE(BitwiseEqual(dpart, dfc.narrow(0, begin, count))) << begin << "+" << count;
      }
    }
  }
}

TEST_P(GeluTest, FarValuesAndNotANumber) {
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor x =
      at::tensor({-1e4, -60.0, 60.0, 1e4, std::nan("")}, at::kDouble).to(Type()).to(Options().device());
  for (const Form& form : kForms) {
    const at::Tensor y = Empty({5}), dx = Empty({5});
    form.forward(x, y);
    form.backward(x, at::ones_like(x), dx);
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
}

// The exact form keeps its digits where it is small, as 1 + erf(x / sqrt(2)) would not.
TEST_P(GeluTest, ExactFormKeepsItsRelativeAccuracyInTheTail) {
  const at::Tensor x = at::arange(-9.0, 9.0, 0.01, at::kDouble).to(Type()).to(Options().device());
  const at::Tensor y = Empty({x.size(0)});
  GeluForward(x, y);
  const at::Tensor exact = Exact(x), want = exact * 0.5 * at::erfc(exact * -M_SQRT1_2);
  const double smallest = Type() == at::kHalf ? 6e-5 : 0;  // of fp16's normal numbers
  const at::Tensor error = (Exact(y) - want).abs() / want.abs().clamp_min(std::max(smallest, 1e-300));
  EXPECT_LT(error.max().item<double>(), Type() == at::kDouble ? 1e-13 : (Type() == at::kFloat ? 1e-5 : Tolerance()));
}

TEST_P(SwiGluTest, EqualsAutogradInPlaceAndTailsEqualBodies) {
  for (int64_t width = 1; width <= 40; ++width) {
    const int64_t rows = 5;
    const at::Tensor gate_up = Random({rows, 2 * width}) * 3, dact = Random({rows, width});
    const at::Tensor act = Empty({rows, width}), gradient = Empty({rows, 2 * width});
    SwiGluForward(gate_up, act);
    SwiGluBackward(gate_up, dact, gradient);
    at::Tensor ref = Exact(gate_up).requires_grad_();
    const at::Tensor want = at::silu(ref.narrow(1, 0, width)) * ref.narrow(1, width, width);
    want.backward(Exact(dact));
    EXPECT_LT(RelativeError(act, want.detach()), Tolerance()) << width;
    EXPECT_LT(RelativeError(gradient, ref.grad()), Tolerance()) << width;
    const at::Tensor in_place = gate_up.clone();
    SwiGluBackward(in_place, dact, in_place);
    EXPECT_TRUE(BitwiseEqual(in_place, gradient)) << width;
    for (int64_t begin = 0; begin < std::min<int64_t>(width, 3); ++begin) {
      const int64_t count = width - begin;
      auto cut = [&](const at::Tensor& t, int64_t from) { return t.narrow(1, from + begin, count); };
      const at::Tensor part = at::cat({cut(gate_up, 0), cut(gate_up, width)}, 1), part_act = Empty({rows, count});
      const at::Tensor part_gradient = Empty({rows, 2 * count});
      SwiGluForward(part, part_act);
      SwiGluBackward(part, cut(dact, 0).contiguous(), part_gradient);
      EXPECT_TRUE(BitwiseEqual(part_act, cut(act, 0))) << begin << " of " << width;
      EXPECT_TRUE(BitwiseEqual(part_gradient, at::cat({cut(gradient, 0), cut(gradient, width)}, 1)))
          << begin << " of " << width;
    }
  }
}

TEST_P(SwiGluTest, LargeGradientsOverflowInsteadOfSaturating) {
  const at::Tensor gate_up = at::full({3, 34}, 200.0, Options().dtype(Type()));
  const at::Tensor dact = at::full({3, 17}, 60000.0, Options().dtype(Type())), gradient = Empty({3, 34});
  SwiGluBackward(gate_up, dact, gradient);
  EXPECT_EQ(std::isinf(Exact(gradient).min().item<double>()), Type() == at::kHalf);
}

TRIREME_INSTANTIATE_KERNEL_TEST(GeluTest);
TRIREME_INSTANTIATE_KERNEL_TEST(SwiGluTest);

}  // namespace
}  // namespace trireme::kernels
