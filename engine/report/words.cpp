#include "engine/report/words.h"

#include <fmt/core.h>

#include <cmath>

namespace trireme::report {

std::string Seconds(double seconds) {
  const double size = std::abs(seconds);
  const auto digits = [](double value) { return value >= 100 ? 0 : value >= 10 ? 1 : 2; };
  if (size == 0) return "0 s";
  if (size >= 1) return fmt::format("{:.{}f} s", seconds, digits(size));
  if (size >= 1e-3) return fmt::format("{:.{}f} ms", seconds * 1e3, digits(size * 1e3));
  return fmt::format("{:.{}f} us", seconds * 1e6, digits(size * 1e6));
}

std::string Percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string Gib(int64_t bytes) {
  const double gib = static_cast<double>(bytes) / (1 << 30);
  return bytes == 0 ? "0" : gib < 0.01 ? "<0.01" : fmt::format("{:.2f}", gib);
}

}  // namespace trireme::report
