// InitNormal: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC11) and
// Box-Muller in double.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cmath>
#include <numbers>

#include "engine/kernels/checks.h"
#include "engine/kernels/kernels.h"

namespace trireme::kernels {
namespace {

std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = 0xD2511F53ull * counter[0], second = 0xCD9E8D57ull * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

uint32_t LowWord(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t HighWord(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

// In (0, 1): 53 bits and a half, so that its logarithm is finite.
double Uniform(uint32_t high, uint32_t low) {
  const uint64_t bits = (static_cast<uint64_t>(high) << 32 | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

// Normal numbers 2 * pair and 2 * pair + 1.
std::array<double, 2> NormalPair(uint64_t seed, uint64_t stream, uint64_t pair) {
  const auto words =
      Philox({LowWord(pair), HighWord(pair), LowWord(stream), HighWord(stream)}, {LowWord(seed), HighWord(seed)});
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
