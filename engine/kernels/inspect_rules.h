// What FindNonFinite and Checksum make of one element, on CPU and GPU alike.
#pragma once
#include <cstdint>

#include "engine/kernels/host_device.h"

namespace trireme::kernels {

constexpr uint64_t kChecksumOffset = 0x9E3779B97F4A7C15ull;
constexpr int64_t kAllFinite = INT64_MAX;

TRIREME_HOST_DEVICE inline uint64_t ChecksumTerm(uint64_t bits, int64_t i) {
  return (bits + kChecksumOffset) * (2 * static_cast<uint64_t>(i) + 1);
}

}  // namespace trireme::kernels
