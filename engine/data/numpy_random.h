// NumPy's legacy generator, bit for bit, as far as Megatron-LM's sample order needs it.
//   NumpyRandom random(1234);  random.Shuffle(std::span(ids));   // equals numpy.random.RandomState(1234).shuffle(ids)
// MT19937 with the classic 32-bit seeding (that of std::mt19937); Fisher-Yates from the end; a bounded number is drawn
// by masking and rejection. Compared with NumPy 2.4 in tests/compat/data.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace trireme::data {

class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}

  // Uniform in [0, max].
  uint64_t Bounded(uint64_t max) {
    const uint64_t mask = max == 0 ? 0 : ~uint64_t{0} >> std::countl_zero(max);
    uint64_t value;
    if (max <= 0xffffffffu) {
      while ((value = engine_() & mask) > max) {
      }
    } else {
      while ((value = Draw64() & mask) > max) {
      }
    }
    return value;
  }

  // The numbers drawn do not depend on the data, so they are drawn ahead and their places fetched into the cache:
  // arrays of 1e7 and more are bound by memory latency otherwise.
  template <typename T>
  void Shuffle(std::span<T> values) {
    constexpr uint64_t kAhead = 64;
    uint64_t drawn[kAhead];
    for (uint64_t left = values.size(); left > 1;) {  // places left-1, left-2, ... 1 are still to be filled
      const uint64_t batch = std::min(kAhead, left - 1);
      for (uint64_t i = 0; i < batch; ++i) {
        drawn[i] = Bounded(left - 1 - i);
        __builtin_prefetch(&values[drawn[i]], 1);
      }
      for (uint64_t i = 0; i < batch; ++i) std::swap(values[left - 1 - i], values[drawn[i]]);
      left -= batch;
    }
  }

 private:
  uint64_t Draw64() {
    const uint64_t high = engine_();
    return high << 32 | engine_();
  }
  std::mt19937 engine_;
};

}  // namespace trireme::data
