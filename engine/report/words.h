// Figures as the pages and tables of this room write them.
#pragma once
#include <cstdint>
#include <string>

namespace trireme::report {

std::string Seconds(double seconds);  // "12.3 ms", three digits or so
std::string Percent(double share);    // 0.123 -> "12.3 %"
std::string Gib(int64_t bytes);       // "1.50"

}  // namespace trireme::report
