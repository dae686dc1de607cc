// InitNormal: Philox4x32-10 and Box-Muller in double.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cmath>
#include <numbers>

#include "engine/kernels/checks.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/philox.h"

namespace trireme::kernels {
namespace {

// In (0, 1): 53 bits and a half, so that its logarithm is finite.
double Uniform(uint32_t high, uint32_t low) {
  const uint64_t bits = (static_cast<uint64_t>(high) << 32 | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

// Normal numbers 2 * pair and 2 * pair + 1.
std::array<double, 2> NormalPair(uint64_t seed, uint64_t stream, uint64_t pair) {
  const PhiloxWords random =
      Philox({{LowWord(pair), HighWord(pair), LowWord(stream), HighWord(stream)}}, LowWord(seed), HighWord(seed));
  const uint32_t* words = random.words;
  const double radius = std::sqrt(-2 * std::log(Uniform(words[0], words[1])));
  const double angle = 2 * std::numbers::pi * Uniform(words[2], words[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

void InitNormal(const at::Tensor& tensor, uint64_t seed, uint64_t stream, int64_t element_offset,
                int64_t element_stride, double mean, double standard_deviation) {
  const int64_t count = tensor.numel();
  CheckShape(tensor, {count}, "tensor");
  at::Tensor values = tensor.is_cpu() && tensor.scalar_type() == at::kDouble ? tensor : at::empty({count}, at::kDouble);
  double* out = values.data_ptr<double>();
  at::parallel_for(0, count, 4096, [&](int64_t begin, int64_t end) {
    uint64_t last_pair = ~uint64_t{0};
    std::array<double, 2> pair{};
    for (int64_t i = begin; i < end; ++i) {
      const auto element = static_cast<uint64_t>(element_offset + i * element_stride);
      if (element / 2 != last_pair) {
        last_pair = element / 2;
        pair = NormalPair(seed, stream, last_pair);
      }
      out[i] = mean + standard_deviation * pair[element % 2];
    }
  });
  if (values.is_same(tensor)) return;
  if (tensor.is_cpu()) {
    CastCopy(values, tensor);
    return;
  }
  at::Tensor rounded = tensor.scalar_type() == at::kDouble ? values : at::empty({count}, tensor.scalar_type());
  if (!rounded.is_same(values)) CastCopy(values, rounded);
  tensor.copy_(rounded);
}

}  // namespace trireme::kernels
