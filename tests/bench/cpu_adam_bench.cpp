// Adam on the CPU against the memory: cpu_adam_bench [millions of parameters] [rounds] [threads ...].
// One update (fp32 master and moments, bf16 gradient in, bf16 weights out: 28 bytes a parameter) beside an in-place
// pass over the same three fp32 arrays (24 bytes), by turns, on the same threads. `ratio` is the time of the update
// over 28/24 of the pass's, each the median of the rounds; the last column is the same by processor time, which other
// programs on the machine disturb less. Ends with 1 if a ratio is above the bar of 1.10.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/kernels/kernels.h"

namespace {

using namespace trireme;           // NOLINT: a small program
using namespace trireme::kernels;  // NOLINT

constexpr double kBar = 1.10, kUpdateBytes = 28, kPassBytes = 24;

// Compiled with -O3: as fast as memory gives, at any width of vectors.
#if defined(__x86_64__)
[[gnu::target_clones("avx512f", "avx2", "default")]]
#endif
void ScaleThree(float* __restrict a, float* __restrict b, float* __restrict c, int64_t count, float by) {
  for (int64_t i = 0; i < count; ++i) {
    a[i] *= by;
    b[i] *= by;
    c[i] *= by;
  }
}

double ProcessorSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Times {
  std::vector<double> wall, processor;
  void Add(const std::function<void()>& action) {
    const double before = ProcessorSeconds();
    const auto start = std::chrono::steady_clock::now();
    action();
    wall.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    processor.push_back(ProcessorSeconds() - before);
  }
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct Buffers {
  at::Tensor master, exp_avg, exp_avg_sq, gradient, weights, state, learning_rates, betas;
};

Buffers Make(int64_t count) {
  Buffers b{.master = at::full({count}, 0.02, at::kFloat),
            .exp_avg = at::full({count}, 1e-3, at::kFloat),
            .exp_avg_sq = at::full({count}, 1e-6, at::kFloat),
            .gradient = at::full({count}, 1e-3, at::kBFloat16),
            .weights = at::zeros({count}, at::kBFloat16),
            .state = at::zeros({kStepStateSize}, at::kDouble),
            .learning_rates = at::full({1}, 1e-4, at::kDouble),
            .betas = at::full({1, 2}, 0.95, at::kDouble)};
  b.state.mutable_data_ptr<double>()[kUpdateFactor] = 0.7;
  b.state.mutable_data_ptr<double>()[kRateFactor] = 1;
  b.state.mutable_data_ptr<double>()[kAppliedSteps] = 10;
  return b;
}

double Ratio(const Buffers& b, int rounds, int threads) {
  at::set_num_threads(threads);
  const int64_t count = b.master.numel();
  volatile float one = 1.0f;  // the states keep their values
  const auto pass = [&] {
    const float by = one;
    at::parallel_for(0, count, 4096, [&](int64_t begin, int64_t end) {
      ScaleThree(b.master.mutable_data_ptr<float>() + begin, b.exp_avg.mutable_data_ptr<float>() + begin,
                 b.exp_avg_sq.mutable_data_ptr<float>() + begin, end - begin, by);
    });
  };
  const auto update = [&] {
    AdamUpdate(b.master, b.exp_avg, b.exp_avg_sq, b.gradient, b.weights, b.state, b.learning_rates, b.betas,
               {.weight_decay = 0.1});
  };
  pass();
  update();  // both once for nothing
  Times passes, updates;
  for (int round = 0; round < rounds; ++round) {
    passes.Add(pass);
    updates.Add(update);
  }
  const double number = static_cast<double>(count), pass_s = Median(passes.wall), update_s = Median(updates.wall);
  const double scale = kPassBytes / kUpdateBytes, ratio = update_s / pass_s * scale;
  const double processor_ratio = Median(updates.processor) / Median(passes.processor) * scale;
  fmt::print("{:>7}{:>16.3f}{:>12.1f}{:>18.3f}{:>12.1f}{:>10.3f}{:>17.3f}\n", threads, update_s / number * 1e9,
             number * kUpdateBytes / update_s / 1e9, pass_s / number * 1e9, number * kPassBytes / pass_s / 1e9, ratio,
             processor_ratio);
  return ratio;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t millions = argc > 1 ? std::atoll(argv[1]) : 192;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  std::vector<int> threads;
  for (int i = 3; i < argc; ++i) threads.push_back(std::atoi(argv[i]));
  if (threads.empty()) {
    threads = {1, 2};
    if (const int all = static_cast<int>(std::thread::hardware_concurrency()); all > 2) threads.push_back(all);
  }
  if (millions < 1 || rounds < 1 || *std::min_element(threads.begin(), threads.end()) < 1) {
    fmt::print(stderr, "usage: cpu_adam_bench [millions of parameters] [rounds] [threads ...]\n");
    return 2;
  }
  const Buffers buffers = Make(millions * 1'000'000);
  fmt::print("{} million parameters, {} rounds, {}\n", millions, rounds, CpuLevel());
  fmt::print("threads  update ns/param        GB/s     pass ns/param        GB/s     ratio   processor time\n");
  double worst = 0;
  for (const int number : threads) worst = std::max(worst, Ratio(buffers, rounds, number));
  fmt::print("worst ratio {:.3f}, bar {:.2f}\n", worst, kBar);
  return worst <= kBar ? 0 : 1;
}
