#include "engine/plan/throughput.h"

#include <array>
#include <cctype>

namespace trireme {
namespace {

// From the makers' data sheets, without sparsity. The first row whose name stands in the driver's, as words of it,
// counts. 0: none.
struct GpuPeak {
  std::string_view name;
  double half, fp32, fp64;  // bf16 and fp16; fp32 without TF32; fp64 with its matrix units
};
constexpr auto kPeaks = std::to_array<GpuPeak>({
    {"B200", 2250, 75, 37},
    {"H200 NVL", 836, 60, 60},
    {"H200", 989, 67, 67},
    {"H100 NVL", 836, 60, 60},
    {"H100 PCIe", 756, 51, 51},
    {"H100", 989, 67, 67},
    {"A100", 312, 19.5, 19.5},
    {"A800", 312, 19.5, 19.5},
    {"A40", 149.7, 37.4, 0},
    {"A30", 165, 10.3, 10.3},
    {"A10", 125, 31.2, 0},
    {"L40S", 362, 91.6, 0},
    {"L40", 181, 90.5, 0},
    {"L4", 121, 30.3, 0},
    {"V100", 125, 15.7, 7.8},
});

bool HasWords(std::string_view text, std::string_view words) {
  const auto is_letter = [&](size_t at) {
    return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
  };
  for (size_t at = text.find(words); at != std::string_view::npos; at = text.find(words, at + 1)) {
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + words.size())) return true;
  }
  return false;
}

}  // namespace

double ModelFlopsPerToken(const Plan& plan, AttentionCount attention) {
  double forward = 0;  // of one of tp_size ranks
  for (const UnitLayout& unit : plan.units) {
    forward += unit.spec.forward_flops_per_token;
    if (attention == AttentionCount::kWhole) forward += unit.spec.attention_flops_per_token;
  }
  return 3 * forward * plan.topology.tp_size;
}

Throughput ThroughputOf(const Plan& plan, double tokens, double seconds, std::optional<double> peak_tflops) {
  const double ranks = plan.topology.world_size();
  Throughput rate;
  rate.tokens_per_second = tokens / seconds;
  rate.tokens_per_second_per_rank = rate.tokens_per_second / ranks;
  rate.tflops_per_rank = rate.tokens_per_second_per_rank * ModelFlopsPerToken(plan) / 1e12;
  rate.peak_tflops = peak_tflops;
  if (peak_tflops) rate.mfu = rate.tflops_per_rank / *peak_tflops;
  return rate;
}

std::optional<double> PeakTflops(std::string_view gpu, DType type) {
  for (const GpuPeak& row : kPeaks) {
    if (!HasWords(gpu, row.name)) continue;
    // V100 has no bf16 units.
    if (type == DType::kBFloat16 && row.name == "V100") return std::nullopt;
    const double peak = type == DType::kFloat64 ? row.fp64 : type == DType::kFloat32 ? row.fp32 : row.half;
    return peak > 0 ? std::optional(peak) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace trireme
