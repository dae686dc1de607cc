#include "engine/comm/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "engine/base/error.h"
#include "engine/comm/flight_recorder.h"

namespace trireme {
namespace {

constexpr int64_t kBlock = 1024;  // accumulators of 16-bit floats stay in the first-level cache

template <typename A>
A Larger(A a, A b) {
  if constexpr (std::is_floating_point_v<A>) {
    if (std::isnan(a) || std::isnan(b)) return a + b;
  }
  return a > b ? a : b;
}

template <typename T, typename A>
void Reduce(ReduceOp op, std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs, int64_t count) {
  A sums[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t n = std::min(kBlock, count - start);
    const T* first = reinterpret_cast<const T*>(inputs[0]) + start;
    for (int64_t i = 0; i < n; ++i) sums[i] = static_cast<A>(first[i]);
    for (const std::byte* input : inputs.subspan(1)) {
      const T* in = reinterpret_cast<const T*>(input) + start;
      if (op == ReduceOp::kSum) {
        for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<A>(in[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) sums[i] = Larger(sums[i], static_cast<A>(in[i]));
      }
    }
    for (std::byte* output : outputs) {
      T* out = reinterpret_cast<T*>(output) + start;
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(sums[i]);
    }
  }
}

template <typename T, typename A>
void Change(std::byte* data, int64_t index, double amount) {
  T& element = reinterpret_cast<T*>(data)[index];
  const T changed = static_cast<T>(static_cast<A>(element) + static_cast<A>(amount));
  element = changed == element ? static_cast<T>(-static_cast<A>(element)) : changed;
}

}  // namespace

bool IsReducible(c10::ScalarType type) {
  using enum c10::ScalarType;
  return type == Double || type == Float || type == BFloat16 || type == Half || type == Long || type == Int;
}

void ReduceInOrder(c10::ScalarType type, ReduceOp op, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, int64_t count) {
  if (inputs.empty() || count == 0) return;
  switch (type) {
    case c10::ScalarType::Double:
      return Reduce<double, double>(op, inputs, outputs, count);
    case c10::ScalarType::Float:
      return Reduce<float, float>(op, inputs, outputs, count);
    case c10::ScalarType::BFloat16:
      return Reduce<c10::BFloat16, float>(op, inputs, outputs, count);
    case c10::ScalarType::Half:
      return Reduce<c10::Half, float>(op, inputs, outputs, count);
    case c10::ScalarType::Long:
      return Reduce<int64_t, int64_t>(op, inputs, outputs, count);
    case c10::ScalarType::Int:
      return Reduce<int32_t, int32_t>(op, inputs, outputs, count);
    default:
      TRIREME_CHECK(false, "no reduction of " + TypeName(type));
  }
}

void ChangeElement(c10::ScalarType type, std::byte* data, int64_t index, double amount) {
  switch (type) {
    case c10::ScalarType::Double:
      return Change<double, double>(data, index, amount);
    case c10::ScalarType::Float:
      return Change<float, float>(data, index, amount);
    case c10::ScalarType::BFloat16:
      return Change<c10::BFloat16, float>(data, index, amount);
    case c10::ScalarType::Half:
      return Change<c10::Half, float>(data, index, amount);
    case c10::ScalarType::Long:
      return Change<int64_t, int64_t>(data, index, amount);
    case c10::ScalarType::Int:
      return Change<int32_t, int32_t>(data, index, amount);
    default:
      data[index * static_cast<int64_t>(c10::elementSize(type))] ^= std::byte{1};
      return;
  }
}

}  // namespace trireme
