#include "engine/base/env.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <system_error>

#include "engine/base/error.h"
#include "engine/base/strings.h"

namespace trireme::env {

std::optional<std::string> Text(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int64_t> Integer(const char* name) {
  const std::optional<std::string> text = Text(name);
  if (!text) return std::nullopt;
  char* end = nullptr;
  const long long value = std::strtoll(text->c_str(), &end, 10);
  if (*end != '\0') {
    throw Error(ErrorCode::kEnvironment, "ENV001", "is '" + *text + "', which is no integer",
                std::string("environment variable ") + name, "set it to an integer or unset it");
  }
  return value;
}

std::optional<int64_t> FirstInteger(const char* name) {
  const std::optional<std::string> text = Text(name);
  if (!text) return std::nullopt;
  const char* const begin = text->data() + std::min(text->find_first_not_of(" \t"), text->size());
  const char* const end = text->data() + text->size();
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(begin, end, value);
  const size_t next = text->find_first_not_of(" \t", static_cast<size_t>(rest - text->data()));
  if (error != std::errc() || (next != std::string::npos && (*text)[next] != ',')) return std::nullopt;
  return value;
}

bool Flag(const char* name) {
  const std::string value = ToLower(Text(name).value_or(""));
  return value == "1" || value == "true" || value == "yes" || value == "on";
}

void SetDefault(const char* name, const char* value) { ::setenv(name, value, /*overwrite=*/0); }

}  // namespace trireme::env
