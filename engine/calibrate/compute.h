// Rates of what a device computes: products, attention, element-wise kernels, the update of offloaded states.
//   Measurements found;  MeasureCompute(watch, sizes, found);
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/calibrate/stopwatch.h"
#include "parsers/cluster.h"

namespace trireme::calibrate {

// One figure as it is shown: "products bf16 2048 x 5120 x 5120", 712e12, "FLOP/s", spread.
struct Figure {
  std::string what;
  double value = 0;
  std::string unit;
  double spread = 0;
};
using Figures = std::vector<Figure>;

// What is measured. Sizes follow what the device is: those of a GPT that it would train.
struct Sizes {
  std::vector<DType> dtypes;
  std::vector<int64_t> tokens, hidden;  // of products: every token count with every width
  int64_t vocabulary = 0;
  int64_t attention_batch = 0, sequence = 0, head_size = 0, attention_hidden = 0;
  int64_t elementwise_tokens = 0, elementwise_hidden = 0;
  int64_t wide_elements = 0;  // of passes over memory: far more than caches hold
  std::vector<int64_t> link_bytes;
  int64_t disk_bytes = 0;
  // Of the training run that the engine's factor is fitted from.
  int64_t fit_layers = 0, fit_hidden = 0, fit_heads = 0, fit_vocabulary = 0, fit_sequence = 0, fit_micro_batch = 0,
          fit_accumulation = 0, fit_steps = 0;
  Effort effort;
  Effort sustained;  // of the update on the host: samples as long as an update
};
Sizes SizesOf(at::Device device, bool quick);

// Adam on the states of so many elements, with 32-bit gradients and 16-bit weights, in memory that `make` gives: what
// pages it has decides the rate on the host.
using MakeFlat = std::function<at::Tensor(int64_t elements, at::ScalarType type)>;
Timing TimeAdam(const Stopwatch& watch, int64_t elements, const MakeFlat& make);
constexpr double kAdamBytes = 30;  // an element: three states both ways, gradient, weights

// Fills rates, products, memory rate and kernel time of `device`, whose rates are those of all ranks that share it
// together: `sharing` of them.
void MeasureCompute(const Stopwatch& watch, const Sizes& sizes, int64_t sharing, DeviceDescription& device,
                    Figures& figures);

}  // namespace trireme::calibrate
