#include "engine/base/json_text.h"

#include <fmt/core.h>

#include <cmath>

#include "engine/base/printable.h"

namespace trireme {
std::string JsonText(std::string_view text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const size_t length = Utf8Length(text, at);
    const char c = text[at];
    if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else if (length > 1) {
      const std::string_view sequence = text.substr(at, length);
      // Line ends of old JavaScript.
      out += sequence == "\xE2\x80\xA8" ? "\\u2028" : sequence == "\xE2\x80\xA9" ? "\\u2029" : sequence;
    } else if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == '<' || c == '>' || c == '&' || c == 0x7F) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
    at += length == 0 ? 1 : length;
  }
  return out + '"';
}

std::string JsonNumber(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

}  // namespace trireme
