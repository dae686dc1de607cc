// exp for the loops that the compiler vectorises. Included only by files that are compiled once a level.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "engine/kernels/cpu/element.h"

namespace trireme::kernels {
namespace {

inline double Exp(double x) { return std::exp(x); }

// Within 2 ulp on [-80, 80], clamped outside (so that neither it nor a quotient by it is denormal: those are slow); NaN
// stays NaN. The reduction and polynomial of Cephes' expf (S. Moshier, 1992).
inline float Exp(float x) {
  constexpr float kLog2E = 1.44269504088896341f, kHigh = 0.693359375f, kLow = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float clamped = x < -80.0f ? -80.0f : (x > 80.0f ? 80.0f : x);
  const float shifted = clamped * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kHigh) - n * kLow;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  int32_t exponent;
  std::memcpy(&exponent, &shifted, sizeof(exponent));
  const int32_t scale_bits = (exponent - 0x4b400000 + 127) << 23;
  float scale;
  std::memcpy(&scale, &scale_bits, sizeof(scale));
  return p * scale;
}

}  // namespace
}  // namespace trireme::kernels
