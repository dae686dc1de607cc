#include "parsers/text_values.h"

#include <charconv>
#include <cmath>
#include <set>
#include <string>

#include "engine/base/strings.h"

namespace trireme {

std::optional<int64_t> IntegerFromText(std::string_view text) {
  std::string digits;
  text = Trim(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  if (const size_t dot = text.find('.'); dot != std::string_view::npos) {
    if (text.find_first_not_of('0', dot + 1) != std::string_view::npos) return std::nullopt;
    text = text.substr(0, dot);
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && i > 0 && i + 1 < text.size() && text[i - 1] != '_') continue;
    digits += text[i];
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<double> NumberFromText(std::string_view text) {
  text = Trim(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<bool> BooleanFromText(std::string_view text) {
  static const std::set<std::string> kTrue = {"true", "t", "yes", "y", "on", "1"};
  static const std::set<std::string> kFalse = {"false", "f", "no", "n", "off", "0"};
  const std::string lower = ToLower(text);
  if (kTrue.contains(lower)) return true;
  if (kFalse.contains(lower)) return false;
  return std::nullopt;
}

std::optional<DType> DTypeFromText(std::string_view text) {
  static constexpr std::string_view kModule = "torch.";
  if (text.starts_with(kModule)) text.remove_prefix(kModule.size());
  return ParseDType(text);
}

}  // namespace trireme
