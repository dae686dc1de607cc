#include "engine/base/json_text.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <cstdint>

namespace trireme {
namespace {

// Bytes of the UTF-8 sequence that begins at `at`; 0 if none does (RFC 3629, 4).
size_t SequenceLength(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned first = byte(at), second = byte(at + 1);
  const auto follows = [&](size_t count) {
    for (size_t i = 1; i <= count; ++i) {
      if ((byte(at + i) & 0xC0U) != 0x80U) return false;
    }
    return true;
  };
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool shortest = first != 0xE0 || second >= 0xA0, surrogate = first == 0xED && second >= 0xA0;
    return shortest && !surrogate && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool in_range = (first != 0xF0 || second >= 0x90) && (first != 0xF4 || second < 0x90);
    return in_range && follows(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string JsonText(std::string_view text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const size_t length = SequenceLength(text, at);
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
