// Small helpers on text.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

// Optimal string alignment distance: insert, delete, replace, swap neighbours.
int DamerauDistance(std::string_view a, std::string_view b);

// The nearest of `known` within distance 2 of `word` (1 if the word is shorter than six letters); ties: first in
// `known`. Letter case does not count.
std::optional<std::string> Suggest(std::string_view word, std::span<const std::string> known);

std::vector<std::string> Split(std::string_view text, char separator);  // keeps empty parts
std::string Join(std::span<const std::string> parts, std::string_view separator);
std::string_view Trim(std::string_view text);
std::string ToLower(std::string_view text);
std::string Counted(int64_t count, std::string_view what);  // "1 port", "2 ports"

}  // namespace trireme
