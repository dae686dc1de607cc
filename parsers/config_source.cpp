#include "parsers/config_source.h"

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/strings.h"

namespace trireme {

std::optional<std::string> FromBase64(const std::string& text) {
  static constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const size_t six = kAlphabet.find(c);
    if (six == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(six);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(static_cast<unsigned char>(bits >> count & 0xFF));
  }
  return bytes;
}

std::optional<ConfigSource> ReadConfigSource(const std::string& argument, Diagnostics& diagnostics) {
  std::error_code ignored;  // base64 is longer than names of files may be
  if (!std::filesystem::exists(argument, ignored)) {
    // Any word of 4 letters is base64; the text of an object is not reached by chance.
    const std::optional<std::string> decoded = FromBase64(argument);
    if (decoded && Trim(*decoded).starts_with('{')) return ConfigSource{"<base64>", *decoded};
  }
  try {
    return ConfigSource{argument, ReadFile(argument, ErrorCode::kConfig)};
  } catch (const Error& error) {
    const bool long_word = argument.size() > 255 && argument.find('/') == std::string::npos;
    diagnostics.Error("CFG001", {long_word ? argument.substr(0, 40) + "..." : argument, 0, 0}, "",
                      long_word ? "neither a file nor the text of a config in URL-safe base64" : error.message(),
                      "check the path");
    return std::nullopt;
  }
}

}  // namespace trireme
