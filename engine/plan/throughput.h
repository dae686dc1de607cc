// What the time of a step means: tokens a second, the model's FLOP/s, and their share of what the device can do.
//   Throughput rate = ThroughputOf(plan, tokens, seconds, PeakTflops("NVIDIA H200", DType::kBFloat16));
// There is one counter: the model's own operations, forward and backward, attention counted causal and once. What is
// computed again (recomputation) is not counted, so that two layouts of one job compare by their tokens a second alone.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/base/dtype.h"
#include "engine/plan/plan.h"

namespace trireme {

// Floating-point operations of a token in training, over all ranks that work on it: 3 x forward (backward makes two
// gradients of each product). kWhole counts the half of attention's square too that causal kernels leave out, as PaLM
// (arXiv:2204.02311, appendix B) and many reports do.
enum class AttentionCount : uint8_t { kCausal, kWhole };
double ModelFlopsPerToken(const Plan& plan, AttentionCount attention = AttentionCount::kCausal);

struct Throughput {
  double tokens_per_second = 0;           // of all ranks
  double tokens_per_second_per_rank = 0;  // of one
  double tflops_per_rank = 0;             // 1e12 operations of the model a second
  std::optional<double> peak_tflops;      // of one device
  std::optional<double> mfu;              // tflops_per_rank / peak_tflops
};
// `tokens`: of the whole job in `seconds`.
Throughput ThroughputOf(const Plan& plan, double tokens, double seconds, std::optional<double> peak_tflops);

// 1e12 dense operations a second that the maker states for a GPU's matrix units in this type, accumulation in fp32;
// nullopt: not known. `gpu`: the driver's name, such as "NVIDIA A100-SXM4-80GB".
std::optional<double> PeakTflops(std::string_view gpu, DType type);

}  // namespace trireme
