#include "engine/cli/error_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "engine/cli/error_docs_generated.h"

namespace trireme::cli {

bool IsErrorId(std::string_view word) {
  const auto all = [&](std::string_view part, int (*is)(int)) {
    return std::ranges::all_of(part, [&](char c) { return is(static_cast<unsigned char>(c)) != 0; });
  };
  return word.size() == 6 && all(word.substr(0, 3), std::isalpha) && all(word.substr(3), std::isdigit);
}

std::optional<std::string> ErrorText(std::string_view id) {
  const std::string heading = fmt::format("\n## {}", id);
  for (const std::string_view page : kErrorDocs) {
    const size_t begin = page.find(heading);
    if (begin == std::string_view::npos) continue;
    const size_t text = page.find('\n', begin + 1), end = page.find("\n## ", begin + 1);
    return fmt::format("{}{}\n", id, page.substr(text, (end == std::string_view::npos ? page.size() - 1 : end) - text));
  }
  return std::nullopt;
}

}  // namespace trireme::cli
