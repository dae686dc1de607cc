// Which token comes next.
//   std::mt19937_64 random(sampling.seed);  int32_t next = Sample(logits, sampling, random);
#pragma once
#include <cstdint>
#include <random>
#include <span>

namespace trireme {

struct Sampling {
  double temperature = 1;  // 0: the most likely token (of equal ones the first)
  int64_t top_k = 0;       // draw from the K most likely ones, and what is as likely as the last of them; 0: from all
  double top_p = 1;        // of those, from the fewest most likely ones that together have this probability
                           // (arXiv:1904.09751)
  uint64_t seed = 1234;
};

// Draws a token: temperature, then top_k, then top_p, as Hugging Face's logits processors stand. Ties and sums go by
// token id, so a seed gives the same text wherever the logits are the same.
int32_t Sample(std::span<const float> logits, const Sampling& sampling, std::mt19937_64& random);

}  // namespace trireme
