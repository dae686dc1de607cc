#include "engine/calibrate/compute.h"

namespace trireme::calibrate {

Sizes SizesOf(at::Device device, bool quick) {
  Sizes sizes;
  if (device.is_cuda()) {
    sizes.dtypes = {DType::kBFloat16, DType::kFloat32};
    sizes.tokens = {1024, 2048, 4096, 8192, 16384};
    sizes.hidden = {1024, 2048, 2560, 4096, 5120};
    sizes.vocabulary = 50304;
    sizes.attention_batch = 4;
    sizes.sequence = 2048;
    sizes.elementwise_tokens = 8192;
    sizes.elementwise_hidden = 4096;
    sizes.head_size = 128;
    sizes.attention_hidden = 4096;
    sizes.wide_elements = int64_t{1} << 28;
    sizes.link_bytes = {64 << 10, 1 << 20, 16 << 20, 128 << 20};
    sizes.disk_bytes = int64_t{1} << 30;
    sizes.fit_layers = 12;
    sizes.fit_hidden = 2048;
    sizes.fit_heads = 16;
    sizes.fit_vocabulary = 50257;
    sizes.fit_sequence = 2048;
    sizes.fit_micro_batch = 4;
    sizes.fit_accumulation = 4;
    sizes.fit_steps = 10;
    sizes.effort = {.seconds = 0.03, .least_samples = 5};
  } else {
    sizes.dtypes = {DType::kFloat32, DType::kBFloat16};
    sizes.tokens = {128, 512};
    sizes.hidden = {128, 256, 512};
    sizes.vocabulary = 1024;
    sizes.attention_batch = 2;
    sizes.sequence = 128;
    sizes.elementwise_tokens = 256;
    sizes.elementwise_hidden = 256;
    sizes.head_size = 64;
    sizes.attention_hidden = 256;
    sizes.wide_elements = int64_t{1} << 25;
    sizes.link_bytes = {4 << 10, 64 << 10, 1 << 20, 8 << 20};
    sizes.disk_bytes = int64_t{256} << 20;
    sizes.fit_layers = 4;
    sizes.fit_hidden = 256;
    sizes.fit_heads = 4;
    sizes.fit_vocabulary = 1024;
    sizes.fit_sequence = 128;
    sizes.fit_micro_batch = 2;
    sizes.fit_accumulation = 4;
    sizes.fit_steps = 12;
    sizes.effort = {.seconds = 0.05, .least_samples = 7};
  }
  // In the first tenth of a second after a pause the host's memory is up to a third faster than for the time that an
  // update of gigabytes takes: a sample is as long as one.
  sizes.sustained = {.seconds = 1.5, .least_samples = 3, .sample_seconds = 0.5};
  if (!quick) return sizes;
  sizes.tokens = {sizes.tokens.front()};
  sizes.hidden = {sizes.hidden.front()};
  sizes.wide_elements = int64_t{1} << 20;
  sizes.link_bytes = {4 << 10, 256 << 10};
  sizes.disk_bytes = int64_t{4} << 20;
  sizes.fit_layers = 2;
  sizes.fit_hidden = sizes.fit_hidden / 2;
  sizes.fit_heads = sizes.fit_heads / 2;
  sizes.fit_steps = 3;
  sizes.effort = sizes.sustained = {.seconds = 2e-3, .least_samples = 3};
  return sizes;
}

}  // namespace trireme::calibrate
