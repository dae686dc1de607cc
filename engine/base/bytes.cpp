#include "engine/base/bytes.h"

#include <fmt/core.h>

#include <cmath>
#include <cstdlib>

namespace trireme {

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::abs(value) >= 1024 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::optional<int64_t> ParseBytes(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (end == copy.c_str() || !std::isfinite(value) || value < 0) return std::nullopt;
  std::string_view unit = std::string_view(end);
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  double scale = 1;
  if (!unit.empty()) {
    const size_t power = std::string_view("BKMGTP").find(unit.front());
    if (power == std::string_view::npos) return std::nullopt;
    const std::string_view rest = unit.substr(1);
    if (!rest.empty() && rest != "iB" && rest != "B" && !(power == 0 && rest.empty())) return std::nullopt;
    scale = std::pow(1024.0, static_cast<double>(power));
  }
  const double bytes = value * scale;
  if (bytes > 9.2e18) return std::nullopt;
  return static_cast<int64_t>(std::llround(bytes));
}

std::string FormatCount(int64_t count) {
  std::string digits = std::to_string(count < 0 ? -count : count);
  for (int position = static_cast<int>(digits.size()) - 3; position > 0; position -= 3) {
    digits.insert(static_cast<size_t>(position), 1, ',');
  }
  return count < 0 ? "-" + digits : digits;
}

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{} m {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} m", whole / 3600, whole % 3600 / 60);
}

}  // namespace trireme
