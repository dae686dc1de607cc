// Element types of the CPU kernels and the levels that their loops are compiled for. No LibTorch here, and nothing
// inline with external linkage: these files are compiled once a level, and the linker must not mix the levels.
#pragma once
#include <cstdint>
#include <cstring>

// Before a loop whose iterations touch no element of one another, although its output may be one of its inputs.
#if defined(__clang__)
#define TRIREME_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TRIREME_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace trireme::kernels {

// Each loop exists once for any x86-64 or ARM, and once for AVX2; Adam's, which offload makes hot, for AVX-512 too. All
// give the same bits: contraction is off and sums have fixed lanes.
struct Baseline {};
struct Avx2 {};
struct Avx512 {};

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// Type of statistics, reductions and arithmetic.
template <typename T>
struct AccumulateType {
  using type = float;
};
template <>
struct AccumulateType<double> {
  using type = double;
};
template <typename T>
using Acc = typename AccumulateType<T>::type;

namespace {

constexpr int kLanes = 16;  // partial sums of a reduction: fixed, so that its order never depends on the machine

inline double Load(double value) { return value; }
inline float Load(float value) { return value; }
inline float Load(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

inline float Load(Float16 value) {
  const uint32_t magnitude = value.bits & 0x7fffu, sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t rebias = 112u << 23;  // of the exponent; twice for infinities and NaN
  const uint32_t normal = (magnitude << 13) + (magnitude >= 0x7c00u ? 2 * rebias : rebias);
  const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  uint32_t small_bits;
  std::memcpy(&small_bits, &small, sizeof(small_bits));
  const uint32_t bits = sign | (magnitude < 0x400u ? small_bits : normal);
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

inline void Store(double value, double& target) { target = value; }
inline void Store(float value, double& target) { target = static_cast<double>(value); }
inline void Store(double value, float& target) { target = static_cast<float>(value); }
inline void Store(float value, float& target) { target = value; }
inline void Store(float value, BFloat16& target) {  // round to nearest even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  target.bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
inline void Store(float value, Float16& target) {  // round to nearest even; too large becomes infinite, NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 the sum with 0.5 rounds to multiples of 2^-24 and leaves their count in the low bits.
  float absolute;
  std::memcpy(&absolute, &magnitude, sizeof(absolute));
  const float shifted = absolute + 0.5f;
  uint32_t small;
  std::memcpy(&small, &shifted, sizeof(small));
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t finite = magnitude < 0x38800000u ? small - 0x3f000000u : normal;
  const uint32_t special = magnitude > 0x7f800000u ? ((magnitude >> 13) & 0x3ffu) | 0x7e00u : 0x7c00u;
  const uint32_t result = magnitude >= 0x477ff000u ? special : finite;
  target.bits = static_cast<uint16_t>(result | ((bits >> 16) & 0x8000u));
}

// fp32 rounded to odd, so that rounding it again to 16 bits equals one rounding: a double halfway case must not become
// a tie.
inline float RoundToOdd(double value) {
  float single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof(bits));
  const double back = static_cast<double>(single);
  if (back != value && (bits & 0x7fffffffu) <= 0x7f800000u) {
    if ((back < 0 ? -back : back) > (value < 0 ? -value : value)) bits -= 1;  // toward zero first
    bits |= 1u;
    std::memcpy(&single, &bits, sizeof(bits));
  }
  return single;
}
inline void Store(double value, BFloat16& target) { Store(RoundToOdd(value), target); }
inline void Store(double value, Float16& target) { Store(RoundToOdd(value), target); }

}  // namespace
}  // namespace trireme::kernels
