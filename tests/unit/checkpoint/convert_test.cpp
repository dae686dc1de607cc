#include "checkpoint/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/base/error.h"

namespace trireme::checkpoint {
namespace {

template <typename To, typename From>
To One(DType from, DType to, From value) {
  To out{};
  ConvertElements(from, to, std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(&out, 1)));
  return out;
}
uint16_t Half(double v) { return One<uint16_t>(DType::kFloat64, DType::kFloat16, v); }
uint16_t Brain(double v) { return One<uint16_t>(DType::kFloat64, DType::kBFloat16, v); }

TEST(Convert, KnownValues) {
  EXPECT_EQ(0x3C00, Half(1.0));
  EXPECT_EQ(0xC000, Half(-2.0));
  EXPECT_EQ(0x7BFF, Half(65504.0));
  EXPECT_EQ(0x7BFF, Half(65519.99));
  EXPECT_EQ(0x7C00, Half(65520.0));  // the tie goes to even, which is infinity
  EXPECT_EQ(0x0001, Half(std::ldexp(1.0, -24)));
  EXPECT_EQ(0x0000, Half(std::ldexp(1.0, -25)));  // tie to even
  EXPECT_EQ(0x0001, Half(std::nextafter(std::ldexp(1.0, -25), 1.0)));
  EXPECT_EQ(0x0400, Half(std::ldexp(1.0, -14)));
  EXPECT_EQ(0x0400, Half(std::ldexp(1.0, -14) - std::ldexp(1.0, -26)));  // rounds up out of the subnormals
  EXPECT_EQ(0x8000, Half(-0.0));
  EXPECT_EQ(0x8000, Half(-1e-300));
  EXPECT_EQ(0x7C00, Half(1e300));
  EXPECT_EQ(0xFC00, Half(-std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(std::isnan(One<float>(DType::kFloat16, DType::kFloat32, Half(std::nan("")))));
  EXPECT_EQ(0x3F80, Brain(1.0));
  EXPECT_EQ(0x0001, Brain(std::ldexp(1.0, -133)));
  EXPECT_EQ(0x7F80, Brain(3.4e38 * 1.01));
}

// fp64 to bf16 by way of fp32 would round twice: 1 + 2^-8 + 2^-40 lies just above a tie and must go up.
TEST(Convert, RoundsOnce) {
  EXPECT_EQ(0x3F81, Brain(1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40)));
  EXPECT_EQ(0x3F80, Brain(1.0 + std::ldexp(1.0, -8)));
  EXPECT_EQ(0x3C01, Half(1.0 + std::ldexp(1.0, -11) + std::ldexp(1.0, -40)));
}

TEST(Convert, EverySixteenBitValueComesBack) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const DType wide : {DType::kFloat32, DType::kFloat64}) {
      std::vector<uint16_t> in(65536), out(65536);
      for (int i = 0; i < 65536; ++i) in[i] = static_cast<uint16_t>(i);
      std::vector<std::byte> middle(static_cast<size_t>(65536 * SizeOf(wide)));
      ConvertElements(dtype, wide, std::as_bytes(std::span(in)), middle);
      ConvertElements(wide, dtype, middle, std::as_writable_bytes(std::span(out)));
      const int quiet = dtype == DType::kFloat16 ? 0x200 : 0x40, exponent = dtype == DType::kFloat16 ? 0x7C00 : 0x7F80;
      for (int i = 0; i < 65536; ++i) {
        const bool nan = (i & exponent) == exponent && (i & (0x7FFF ^ exponent)) != 0;
        EXPECT_EQ(nan ? i | quiet : i, out[i] | (nan ? quiet : 0)) << Name(dtype);
      }
    }
  }
}

TEST(Convert, EveryPathToBf16Agrees) {
  uint32_t x = 1;
  for (int i = 0; i < 200000; ++i) {
    x = x * 1664525u + 1013904223u;
    const float value = std::bit_cast<float>(x);
    if (std::isnan(value)) continue;
    EXPECT_EQ(FloatToBFloat16(value), Brain(static_cast<double>(value))) << x;
    EXPECT_EQ(FloatToBFloat16(value), One<uint16_t>(DType::kFloat32, DType::kBFloat16, value)) << x;
  }
}

TEST(Convert, EqualTypesCopyAndIntegersAreRefused) {
  EXPECT_EQ(77, One<int64_t>(DType::kInt64, DType::kInt64, int64_t{77}));
  EXPECT_EQ(0.5f, One<float>(DType::kFloat64, DType::kFloat32, 0.5));
  EXPECT_THROW(One<float>(DType::kInt32, DType::kFloat32, int32_t{1}), Error);
}

}  // namespace
}  // namespace trireme::checkpoint
