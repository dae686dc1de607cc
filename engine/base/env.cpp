#include "engine/base/env.h"

#include <cstdlib>

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

bool Flag(const char* name) {
  const std::string value = ToLower(Text(name).value_or(""));
  return value == "1" || value == "true" || value == "yes" || value == "on";
}

}  // namespace trireme::env
