// Sizes as people read them: 1610612736 <-> "1.5 GiB".
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

std::string FormatBytes(int64_t bytes);                    // "1.50 GiB", "12 B"
std::optional<int64_t> ParseBytes(std::string_view text);  // "1.5 GiB", "512M", "1e9"; nullopt if it is none
std::string FormatCount(int64_t count);                    // 1234567 -> "1,234,567"
std::string FormatDuration(double seconds);                // "1 h 02 m", "3 m 20 s", "4.2 s"

constexpr int64_t AlignUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int64_t CeilDiv(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace trireme
