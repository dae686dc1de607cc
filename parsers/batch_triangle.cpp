#include "parsers/batch_triangle.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "engine/base/strings.h"

namespace trireme {
namespace {

constexpr int64_t kMostSamples = 1'000'000'000;  // of each of the three numbers
constexpr const char* kBatch = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

int64_t DpSize(const BatchInput& in) { return in.world_size / (in.tp_size * in.pp_size * in.sp_size); }

std::string Dp(const BatchInput& in) {
  const int64_t dp = DpSize(in);
  if (dp == in.world_size) return fmt::format("{} (dp = ranks)", dp);
  return fmt::format("{} (dp = world {} / tp {} / pp {}{})", dp, in.world_size, in.tp_size, in.pp_size,
                     in.sp_size > 1 ? fmt::format(" / sp {}", in.sp_size) : "");
}

std::string From(const std::string& source) { return source.empty() ? "" : ", " + source; }

// "set train_batch_size to 16 or 24": the multiples around `value` that the key may have; below the first one, that one
// alone.
std::string SetBatch(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit, above = below + unit;
  if (unit > kMostSamples) return fmt::format("use fewer ranks or a smaller factor: {} goes up to 1e9", kBatch);
  if (below == 0) return fmt::format("set {} to {}, the smallest that fits", kBatch, unit);
  if (above > kMostSamples) return fmt::format("set {} to {}", kBatch, below);
  return fmt::format("set {} to {} or {}", kBatch, below, above);
}

// The divisor of `total` nearest to `wanted`; ties go to the smaller.
int64_t NearestDivisor(int64_t total, int64_t wanted) {
  int64_t best = 1;
  for (int64_t d = 1; d * d <= total; ++d) {
    if (total % d != 0) continue;
    for (const int64_t divisor : {d, total / d}) {
      const int64_t distance = std::abs(divisor - wanted), least = std::abs(best - wanted);
      if (distance < least || (distance == least && divisor < best)) best = divisor;
    }
  }
  return best;
}

BatchResult Refuse(std::string id, const char* key, std::string what, std::string fix) {
  return {std::nullopt, std::move(id), key, std::move(what), std::move(fix)};
}

// All three are given.
BatchResult CheckAll(const BatchInput& in, int64_t dp) {
  const int64_t t = *in.train_batch_size, m = *in.train_micro_batch_size_per_gpu, g = *in.gradient_accumulation_steps;
  const __int128 product = static_cast<__int128>(m) * g * dp;
  if (product == t) return {BatchConfig{t, m, g}, "", "", "", ""};
  std::vector<std::string> options;
  if (t % (m * dp) == 0) options.push_back(fmt::format("{} to {}", kAccumulation, t / (m * dp)));
  if (t % (g * dp) == 0) options.push_back(fmt::format("{} to {}", kMicro, t / (g * dp)));
  const bool small = product <= kMostSamples;
  if (small) options.push_back(fmt::format("{} to {}", kBatch, static_cast<int64_t>(product)));
  std::string fix = "set " + Join(options, ", or ");
  if (t % (m * g) == 0) {
    const int64_t ranks = t / (m * g) * (in.world_size / dp);
    fix = options.empty() ? fmt::format("run {} ranks", ranks) : fix + fmt::format(", or run {} ranks", ranks);
  } else if (options.empty()) {
    fix = fmt::format("remove {}, so that it is derived", kBatch);
  }
  return Refuse("CFG020", kBatch,
                fmt::format("{}{} != {} (micro{}) x {} (accumulation{}) x {}{}", t,
                            in.batch_source.empty() ? "" : " (" + in.batch_source + ")", m, From(in.micro_source), g,
                            From(in.accumulation_source), Dp(in),
                            small ? fmt::format(" = {}", static_cast<int64_t>(product)) : " (which is beyond 1e9)"),
                fix);
}

// t and one factor (micro or accumulation) are given: the other is what is left.
BatchResult DeriveOther(const BatchInput& in, int64_t dp, bool micro_given) {
  const int64_t t = *in.train_batch_size;
  const int64_t factor = micro_given ? *in.train_micro_batch_size_per_gpu : *in.gradient_accumulation_steps;
  const char* given = micro_given ? kMicro : kAccumulation;
  const char* short_name = micro_given ? "micro" : "accumulation";
  const std::string& source = micro_given ? in.micro_source : in.accumulation_source;
  const int64_t unit = factor * dp;
  if (t % unit == 0) {
    return {micro_given ? BatchConfig{t, factor, t / unit} : BatchConfig{t, t / unit, factor}, "", "", "", ""};
  }
  std::string fix = SetBatch(t, unit);
  if (t % dp == 0) fix += fmt::format(", or {} to {}", given, NearestDivisor(t / dp, factor));
  if (t < unit) {
    return Refuse("CFG022", kBatch,
                  fmt::format("the global batch {}{} is too small for {} ({}{}) x {} = {}", t, From(in.batch_source),
                              factor, short_name, From(source), Dp(in), unit),
                  fix);
  }
  return Refuse("CFG020", kBatch,
                fmt::format("{}{} is no multiple of {} ({}{}) x {} = {}", t, From(in.batch_source), factor, short_name,
                            From(source), Dp(in), unit),
                fix);
}

BatchResult DeriveFromBatch(const BatchInput& in, int64_t dp) {
  const int64_t t = *in.train_batch_size;
  if (t % dp == 0) return {BatchConfig{t, t / dp, 1}, "", "", "", ""};
  const std::string fix = SetBatch(t, dp);
  if (t < dp) {
    return Refuse("CFG022", kBatch,
                  fmt::format("the global batch {}{} cannot feed {}", t, From(in.batch_source), Dp(in)), fix);
  }
  return Refuse("CFG020", kBatch, fmt::format("{}{} is no multiple of {}", t, From(in.batch_source), Dp(in)), fix);
}

BatchResult DeriveBatch(const BatchInput& in, int64_t dp) {
  const int64_t m = *in.train_micro_batch_size_per_gpu, g = in.gradient_accumulation_steps.value_or(1);
  const __int128 product = static_cast<__int128>(m) * g * dp;
  if (product <= kMostSamples) return {BatchConfig{static_cast<int64_t>(product), m, g}, "", "", "", ""};
  return Refuse("CFG020", kMicro, fmt::format("{} (micro) x {} (accumulation) x {} is beyond 1e9", m, g, Dp(in)),
                "set smaller numbers");
}

// Files for DeepSpeed's autotp_size that fit when every rank counts as a replica: which of the two readings is meant?
std::optional<BatchResult> TwoReadings(const BatchInput& in, int64_t dp) {
  if (!in.autotp || in.tp_size == 1 || !in.train_batch_size || !in.train_micro_batch_size_per_gpu) return std::nullopt;
  const int64_t t = *in.train_batch_size, m = *in.train_micro_batch_size_per_gpu, replicas = dp * in.tp_size;
  if (t % (m * replicas) != 0) return std::nullopt;
  const int64_t g = t / (m * replicas);
  if (in.gradient_accumulation_steps.value_or(g) != g) return std::nullopt;
  return Refuse(
      "CFG026", kBatch,
      fmt::format("{} is {} (micro) x {} (accumulation) x {} for DeepSpeed, which counts all ranks of autotp_size {} "
                  "as replicas; an update then averages {} different samples, for dp is {}",
                  t, m, g, replicas, in.tp_size, m * g * dp, Dp(in)),
      fmt::format("set {} to {} for {} different samples an update, or {} to {} for what DeepSpeed averages",
                  kAccumulation, g * in.tp_size, t, kBatch, m * g * dp));
}

}  // namespace

BatchResult ResolveBatch(const BatchInput& in) {
  const int64_t dp = DpSize(in);
  const bool t = in.train_batch_size.has_value(), m = in.train_micro_batch_size_per_gpu.has_value();
  const bool g = in.gradient_accumulation_steps.has_value();
  if (std::optional<BatchResult> two = TwoReadings(in, dp)) return *two;
  if (t && m && g) return CheckAll(in, dp);
  if (t && (m || g)) return DeriveOther(in, dp, m);
  if (m) return DeriveBatch(in, dp);
  if (t) return DeriveFromBatch(in, dp);
  return Refuse("CFG021", kBatch,
                fmt::format("neither {} nor {} is given{}", kBatch, kMicro,
                            g ? fmt::format(", only {} {}", kAccumulation, *in.gradient_accumulation_steps) : ""),
                fmt::format("write \"{}\": 1 for example, or pass --micro-batch-size", kMicro));
}

}  // namespace trireme
