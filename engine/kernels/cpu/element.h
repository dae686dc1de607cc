// Element types of the CPU kernels and the levels that their loops are compiled for. No LibTorch here, and nothing
// inline with external linkage: these files are compiled once a level, and the linker must not mix the levels.
#pragma once
#include <cstdint>
#include <cstring>

namespace trireme::kernels {

// Each loop exists once for any x86-64 or ARM, and once for AVX2. Both give the same bits: contraction is off and sums
// have fixed lanes.
struct Baseline {};
struct Avx2 {};

struct BFloat16 {
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
inline void Store(double value, BFloat16& target) {
  // Through fp32 rounded to odd, so that two roundings equal one: a double halfway case must not become a tie.
  float single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof(bits));
  const double back = static_cast<double>(single);
  if (back != value && (bits & 0x7fffffffu) <= 0x7f800000u) {
    if ((back < 0 ? -back : back) > (value < 0 ? -value : value)) bits -= 1;  // toward zero first
    bits |= 1u;
    std::memcpy(&single, &bits, sizeof(bits));
  }
  Store(single, target);
}

}  // namespace
}  // namespace trireme::kernels
