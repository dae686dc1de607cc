#include "tests/unit/kernels/kernel_cases.h"

namespace trireme::kernels {
namespace {

class FlatTest : public KernelTest {};

TEST_P(FlatTest, CastCopyRoundsToNearestEven) {
  const at::Tensor source = Random({1000});
  const at::Tensor special =
      at::tensor({0.0, -0.0, 1e300, -1e300, 1e-300, 1.00390625, 1.01171875, std::nan(""), INFINITY}, at::kDouble);
  for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor got = Empty({1000}, type);
    CastCopy(source, got);
    if (Type() != at::kDouble || type == at::kDouble ||
        type == at::kFloat) {  // ATen rounds twice from double to 16 bits
      EXPECT_TRUE(BitwiseEqual(got, source.to(type)));
    }
    const at::Tensor input = special.to(Type()).to(Options().device()), output = Empty({9}, type);
    CastCopy(input, output);
    EXPECT_TRUE(at::equal(Exact(output).slice(0, 0, 7), Exact(input.to(type)).slice(0, 0, 7)));
    EXPECT_TRUE(std::isnan(Exact(output)[7].item<double>()));
    EXPECT_TRUE(std::isinf(Exact(output)[8].item<double>()));
    for (int64_t count = 1; count <= 33; ++count) {
      const at::Tensor part = Empty({count}, type);
      CastCopy(source.narrow(0, 1, count), part);
      EXPECT_TRUE(BitwiseEqual(part, got.narrow(0, 1, count)));
    }
  }
}

// Just above a tie of bf16: rounding to fp32 first would make it the tie and round down.
TEST_P(FlatTest, DoubleToBFloat16RoundsOnce) {
  const double above = 1.00390625 * (1 + 0x1p-40);
  const at::Tensor source = at::tensor({above, -above, 1.00390625}, at::kDouble).to(Options().device());
  const at::Tensor got = Empty({3}, at::kBFloat16);
  CastCopy(source, got);
  EXPECT_EQ(Exact(got)[0].item<double>(), 1.0078125);
  EXPECT_EQ(Exact(got)[1].item<double>(), -1.0078125);
  EXPECT_EQ(Exact(got)[2].item<double>(), 1.0);
}

TEST_P(FlatTest, DoubleToHalfRoundsOnce) {
  const double tie = 1 + 0x1p-11, above = tie * (1 + 0x1p-40), small = 0x1.8p-24 * (1 + 0x1p-40);
  const at::Tensor source = at::tensor({above, -above, tie, small, 65519.999, 65520.0, 1e300}, at::kDouble);
  const at::Tensor got = Empty({7}, at::kHalf);
  CastCopy(source.to(Options().device()), got);
  const at::Tensor want =
      at::tensor({1 + 0x1p-10, -1 - 0x1p-10, 1.0, 0x1p-23, 65504.0, INFINITY, INFINITY}, at::kDouble);
  EXPECT_TRUE(at::equal(Exact(got), want)) << got;
}

TEST_P(FlatTest, AddIntoRoundsOnce) {
  for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor source = Random({333}), sum = at::randn({333}, at::kDouble).to(type).to(Options().device());
    const at::ScalarType wide = type == at::kDouble || Type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor want = (sum.to(wide) + source.to(wide)).to(type);
    AddInto(source, sum);
    const bool twice = wide == at::kDouble && type != at::kDouble && type != at::kFloat;  // rounded twice by ATen
    EXPECT_LT(RelativeError(sum, want), twice ? 4e-3 : 1e-300);
  }
}

TEST_P(FlatTest, NUM_26_InitialValuesDependOnTheLogicalElementAlone) {
  const int64_t rows = 13, columns = 7;
  const at::Tensor whole = Empty({rows * columns});
  InitNormal(whole, 1234, 5, 0, 1, 0.5, 2);
  for (int64_t begin = 0; begin < 20; ++begin) {  // any slice
    const at::Tensor part = Empty({33});
    InitNormal(part, 1234, 5, begin, 1, 0.5, 2);
    EXPECT_TRUE(BitwiseEqual(part, whole.narrow(0, begin, 33)));
  }
  const at::Tensor transposed = Empty({columns, rows});
  for (int64_t c = 0; c < columns; ++c) InitNormal(transposed[c], 1234, 5, c, columns, 0.5, 2);
  EXPECT_TRUE(BitwiseEqual(transposed.t().contiguous(), whole.view({rows, columns})));
  const at::Tensor exact = at::empty({rows * columns}, at::kDouble);
  InitNormal(exact, 1234, 5, 0, 1, 0.5, 2);
  const at::Tensor rounded = Empty({rows * columns});
  CastCopy(exact.to(Options().device()), rounded);
  EXPECT_TRUE(BitwiseEqual(rounded, whole));
}

TEST_P(FlatTest, InitialValuesAreNormalAndStreamsDiffer) {
  const int64_t count = 200000;
  const at::Tensor a = Empty({count}), b = Empty({count}), c = Empty({count});
  InitNormal(a, 1, 1, 0, 1, 0, 0.02);
  InitNormal(b, 1, 2, 0, 1, 0, 0.02);
  InitNormal(c, 2, 1, 0, 1, 0, 0.02);
  const at::Tensor x = Exact(a) / 0.02, y = Exact(b) / 0.02, z = Exact(c) / 0.02;
  EXPECT_NEAR(x.mean().item<double>(), 0, 0.01);
  EXPECT_NEAR(x.square().mean().item<double>(), 1, 0.02);
  EXPECT_NEAR(x.pow(4).mean().item<double>(), 3, 0.1);
  EXPECT_NEAR((x * y).mean().item<double>(), 0, 0.01);
  EXPECT_NEAR((x * z).mean().item<double>(), 0, 0.01);
  EXPECT_NEAR((x.slice(0, 1) * x.slice(0, 0, count - 1)).mean().item<double>(), 0, 0.01);
}

// Philox4x32-10's published answer for counter and key of zeros is 6627e8d5 e169c58d bc57ac4c 9b00dbd8: element 0 of
// seed 0, stream 0.
TEST(InitNormalTest, PhiloxKnownAnswer) {
  const at::Tensor x = at::empty({2}, at::kDouble);
  InitNormal(x, 0, 0, 0, 1, 0, 1);
  const double u = (static_cast<double>((0x6627e8d5ull << 32 | 0xe169c58dull) >> 11) + 0.5) * 0x1p-53;
  const double v = (static_cast<double>((0xbc57ac4cull << 32 | 0x9b00dbd8ull) >> 11) + 0.5) * 0x1p-53;
  EXPECT_DOUBLE_EQ(x[0].item<double>(), std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v));
  EXPECT_DOUBLE_EQ(x[1].item<double>(), std::sqrt(-2 * std::log(u)) * std::sin(2 * M_PI * v));
}

TRIREME_INSTANTIATE_KERNEL_TEST(FlatTest);

}  // namespace
}  // namespace trireme::kernels
