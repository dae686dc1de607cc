#include "checkpoint/convert.h"

#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "engine/base/error.h"

namespace trireme::checkpoint {
namespace {

// fp64 bits to a 16-bit float of `ExponentBits` and 15 - ExponentBits fraction bits, rounded once to nearest even.
template <int ExponentBits>
uint16_t Narrow(double value) {
  constexpr int kFraction = 15 - ExponentBits, kBias = (1 << (ExponentBits - 1)) - 1;
  constexpr uint16_t kInfinity = static_cast<uint16_t>(((1 << ExponentBits) - 1) << kFraction);
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 48 & 0x8000);
  const int exponent = static_cast<int>(bits >> 52 & 0x7FF) - 1023;
  uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  if (exponent == 1024) {
    const uint16_t payload =
        fraction == 0 ? 0 : static_cast<uint16_t>(fraction >> (52 - kFraction) | 1 << (kFraction - 1));
    return static_cast<uint16_t>(sign | kInfinity | payload);
  }
  int drop = 52 - kFraction;  // fraction bits that do not fit
  uint64_t base;              // exponent field, which a carry out of the fraction may raise
  if (exponent >= 1 - kBias) {
    if (exponent > kBias) return sign | kInfinity;
    base = static_cast<uint64_t>(exponent + kBias) << kFraction;
  } else {  // subnormal: the hidden bit becomes part of the fraction
    drop += 1 - kBias - exponent;
    if (drop > 53 + 1) return sign;
    fraction |= uint64_t{1} << 52;
    base = 0;
  }
  const uint64_t kept = fraction >> drop, rest = fraction & ((uint64_t{1} << drop) - 1),
                 half = uint64_t{1} << (drop - 1);
  const uint64_t up = rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0;
  return static_cast<uint16_t>(sign | static_cast<uint16_t>(base + kept + up));
}

template <int ExponentBits>
double Widen(uint16_t bits) {
  constexpr int kFraction = 15 - ExponentBits, kBias = (1 << (ExponentBits - 1)) - 1, kTop = (1 << ExponentBits) - 1;
  const int exponent = bits >> kFraction & kTop, fraction = bits & ((1 << kFraction) - 1);
  const uint64_t sign = static_cast<uint64_t>(bits & 0x8000) << 48;
  if (exponent == kTop) {
    return std::bit_cast<double>(sign | uint64_t{0x7FF} << 52 | static_cast<uint64_t>(fraction) << (52 - kFraction));
  }
  const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - kBias - kFraction)
                                         : std::ldexp((1 << kFraction) + fraction, exponent - kBias - kFraction);
  return std::bit_cast<double>(std::bit_cast<uint64_t>(magnitude) | sign);
}

struct Fp64 {
  using Stored = double;
  static double Get(Stored v) { return v; }
  static Stored Put(double v) { return v; }
};
struct Fp32 {
  using Stored = float;
  static double Get(Stored v) { return static_cast<double>(v); }
  static Stored Put(double v) { return static_cast<float>(v); }
};
struct Bf16 {
  using Stored = uint16_t;
  static double Get(Stored v) { return static_cast<double>(BFloat16ToFloat(v)); }
  static Stored Put(double v) { return Narrow<8>(v); }
};
struct Fp16 {
  using Stored = uint16_t;
  static double Get(Stored v) { return Widen<5>(v); }
  static Stored Put(double v) { return Narrow<5>(v); }
};

template <typename From, typename To>
void Loop(std::span<const std::byte> source, std::span<std::byte> target) {
  const size_t count = source.size() / sizeof(typename From::Stored);
  for (size_t i = 0; i < count; ++i) {
    typename From::Stored in;
    std::memcpy(&in, source.data() + i * sizeof in, sizeof in);
    const typename To::Stored out = To::Put(From::Get(in));
    std::memcpy(target.data() + i * sizeof out, &out, sizeof out);
  }
}

// The pair of every mixed-precision load and export, in a form that the compiler vectorises.
void FloatToBFloat16Loop(std::span<const std::byte> source, std::span<std::byte> target) {
  const size_t count = source.size() / sizeof(float);
  for (size_t i = 0; i < count; ++i) {
    float in;
    std::memcpy(&in, source.data() + i * sizeof in, sizeof in);
    const uint16_t out = FloatToBFloat16(in);
    std::memcpy(target.data() + i * sizeof out, &out, sizeof out);
  }
}

template <typename From>
bool LoopTo(DType target_dtype, std::span<const std::byte> source, std::span<std::byte> target) {
  switch (target_dtype) {
    case DType::kFloat64:
      Loop<From, Fp64>(source, target);
      return true;
    case DType::kFloat32:
      Loop<From, Fp32>(source, target);
      return true;
    case DType::kBFloat16:
      Loop<From, Bf16>(source, target);
      return true;
    case DType::kFloat16:
      Loop<From, Fp16>(source, target);
      return true;
    default:
      return false;
  }
}

bool Dispatch(DType source_dtype, DType target_dtype, std::span<const std::byte> source, std::span<std::byte> target) {
  switch (source_dtype) {
    case DType::kFloat64:
      return LoopTo<Fp64>(target_dtype, source, target);
    case DType::kFloat32:
      return LoopTo<Fp32>(target_dtype, source, target);
    case DType::kBFloat16:
      return LoopTo<Bf16>(target_dtype, source, target);
    case DType::kFloat16:
      return LoopTo<Fp16>(target_dtype, source, target);
    default:
      return false;
  }
}

}  // namespace

void ConvertElements(DType source_dtype, DType target_dtype, std::span<const std::byte> source,
                     std::span<std::byte> target) {
  const auto from = static_cast<size_t>(SizeOf(source_dtype)), to = static_cast<size_t>(SizeOf(target_dtype));
  TRIREME_CHECK(source.size() % from == 0 && source.size() / from * to == target.size(),
                fmt::format("{} bytes of {} into {} bytes of {}", source.size(), Name(source_dtype), target.size(),
                            Name(target_dtype)));
  if (source_dtype == target_dtype) {
    if (!source.empty()) std::memcpy(target.data(), source.data(), source.size());
    return;
  }
  if (source_dtype == DType::kFloat32 && target_dtype == DType::kBFloat16) return FloatToBFloat16Loop(source, target);
  if (Dispatch(source_dtype, target_dtype, source, target)) return;
  throw Error(ErrorCode::kCheckpoint, "CKP021",
              fmt::format("no conversion from {} to {}", Name(source_dtype), Name(target_dtype)), "",
              "store the tensor as fp64, fp32, bf16 or fp16");
}

}  // namespace trireme::checkpoint
