// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC11), shared by CPU and GPU,
// and the scheme of dropout's masks over it. Plain: no LibTorch, no CUDA header. Without external linkage, since
// cpu/*_vectors.cpp are compiled once a level.
#pragma once
#include <cstdint>

#include "engine/kernels/host_device.h"

namespace trireme::kernels {
namespace {

struct PhiloxWords {
  uint32_t words[4];
};

TRIREME_HOST_DEVICE inline PhiloxWords Philox(PhiloxWords counter, uint32_t key_0, uint32_t key_1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53u} * counter.words[0], second = uint64_t{0xCD9E8D57u} * counter.words[2];
    counter = {{static_cast<uint32_t>(second >> 32) ^ counter.words[1] ^ key_0, static_cast<uint32_t>(second),
                static_cast<uint32_t>(first >> 32) ^ counter.words[3] ^ key_1, static_cast<uint32_t>(first)}};
    key_0 += 0x9E3779B9u;
    key_1 += 0xBB67AE85u;
  }
  return counter;
}

TRIREME_HOST_DEVICE inline uint32_t LowWord(uint64_t value) { return static_cast<uint32_t>(value); }
TRIREME_HOST_DEVICE inline uint32_t HighWord(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

}  // namespace

// What the rows of one call of Dropout share. Word c % 4 of the block of counter (c / 4, position, sample, layer_site)
// decides about channel c: kept where it is at least `threshold`.
struct DropoutMask {
  uint32_t key_0 = 0, key_1 = 0;
  uint32_t first_block = 0;  // first channel / 4
  uint32_t layer_site = 0;   // 4 * layer + site
  uint64_t first_sample = 0, first_position = 0;
  int64_t first_row = 0;
  uint32_t threshold = 0;  // ceil(probability * 2^32)
  double scale = 1;        // 1 / (1 - probability)
};

}  // namespace trireme::kernels
