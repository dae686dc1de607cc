// Looking for values that are not finite, and checksums, on the CPU. Values are never changed, so no level's rounding
// matters here.
#include <atomic>
#include <bit>
#include <cmath>

#include "engine/kernels/backend.h"
#include "engine/kernels/cpu/dispatch.h"
#include "engine/kernels/inspect_rules.h"

namespace trireme::kernels {
namespace {

// Integers of the elements' size; `exponent`: all bits of an infinity's exponent.
template <typename T>
struct BitsOf;
template <>
struct BitsOf<double> {
  using type = uint64_t;
  static constexpr type kExponent = 0x7ff0000000000000ull, kMantissa = 0x000fffffffffffffull;
};
template <>
struct BitsOf<float> {
  using type = uint32_t;
  static constexpr type kExponent = 0x7f800000u, kMantissa = 0x007fffffu;
};
template <>
struct BitsOf<BFloat16> {
  using type = uint16_t;
  static constexpr type kExponent = 0x7f80u, kMantissa = 0x007fu;
};
template <>
struct BitsOf<Float16> {
  using type = uint16_t;
  static constexpr type kExponent = 0x7c00u, kMantissa = 0x03ffu;
};

// The first such element of [begin, end), or end. Blocks without one take no branch an element.
template <typename T>
int64_t FirstNonFinite(const typename BitsOf<T>::type* bits, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 1024;
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t stop = std::min(end, block + kBlock);
    unsigned bad = 0;
    for (int64_t i = block; i < stop; ++i) bad |= (bits[i] & BitsOf<T>::kExponent) == BitsOf<T>::kExponent ? 1u : 0u;
    if (bad == 0) continue;
    for (int64_t i = block; i < stop; ++i) {
      if ((bits[i] & BitsOf<T>::kExponent) == BitsOf<T>::kExponent) return i;
    }
  }
  return end;
}

}  // namespace

template <>
void Backend<CpuDevice>::FindNonFinite(const at::Tensor& values, const at::Tensor& result) {
  std::atomic<int64_t> first = *result.const_data_ptr<int64_t>();
  ForType(values.scalar_type(), [&]<typename T>(T) {
    const auto* bits = static_cast<const typename BitsOf<T>::type*>(values.const_data_ptr());
    Parallel(values.numel(), 1, [&](int64_t begin, int64_t end) {
      const int64_t at = FirstNonFinite<T>(bits, begin, end);
      if (at == end) return;
      const int64_t found = 2 * at + ((bits[at] & BitsOf<T>::kMantissa) != 0 ? 1 : 0);
      for (int64_t seen = first; found < seen && !first.compare_exchange_weak(seen, found);) {
      }
    });
  });
  *result.mutable_data_ptr<int64_t>() = first;
}

template <>
void Backend<CpuDevice>::Checksum(const at::Tensor& values, const at::Tensor& result) {
  std::atomic<uint64_t> total = 0;
  ForType(values.scalar_type(), [&]<typename T>(T) {
    const auto* bits = static_cast<const typename BitsOf<T>::type*>(values.const_data_ptr());
    Parallel(values.numel(), 1, [&](int64_t begin, int64_t end) {
      uint64_t sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += ChecksumTerm(bits[i], i);
      total += sum;
    });
  });
  *result.mutable_data_ptr<int64_t>() += std::bit_cast<int64_t>(total.load());
}

}  // namespace trireme::kernels
