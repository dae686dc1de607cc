#include "engine/data/bpe/unicode.h"

#include <utf8proc.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "engine/base/error.h"

namespace trireme::data {
namespace {

// Length of the valid character at the front, 0 if there is none.
size_t ValidCharLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto tail = [&](size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
  if (text.empty()) return 0;
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4 || !tail(1)) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) {
    if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F)) return 0;
    return tail(2) ? 3 : 0;
  }
  if ((lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F)) return 0;
  return tail(2) && tail(3) ? 4 : 0;
}

// Bytes at the front below 0x80.
size_t AsciiPrefix(std::string_view text) {
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    word &= 0x8080808080808080ULL;
    if (word != 0) return at + static_cast<size_t>(std::countr_zero(word)) / 8;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

// Below U+0300 (lead bytes up to 0xCB) every character is its own composed form and combines with none before it; in
// the other forms that holds below U+0080 (U+00A0 decomposes).
size_t PlainPrefix(std::string_view text, unsigned char first_other_lead) {
  size_t at = 0;
  while (at < text.size()) {
    at += AsciiPrefix(text.substr(at));
    while (at < text.size() && static_cast<unsigned char>(text[at]) >= 0x80) {
      const auto byte = static_cast<unsigned char>(text[at]);
      if (byte >= first_other_lead) return at;
      ++at;
    }
  }
  return at;
}

}  // namespace

size_t ValidUtf8Prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    at += AsciiPrefix(text.substr(at));
    while (at < text.size() && static_cast<unsigned char>(text[at]) >= 0x80) {
      const size_t length = ValidCharLength(text.substr(at, 4));
      if (length == 0) return at;
      at += length;
    }
  }
  return at;
}

size_t InvalidUtf8Prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && ValidCharLength(text.substr(at, 4)) == 0) ++at;
  return at;
}

uint32_t TakeChar(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t lead = byte(at);
  if (lead < 0x80) return byte(at++);
  const size_t begin = at;
  if (lead < 0xE0) {
    at += 2;
    return (lead & 0x1F) << 6 | (byte(begin + 1) & 0x3F);
  }
  if (lead < 0xF0) {
    at += 3;
    return (lead & 0x0F) << 12 | (byte(begin + 1) & 0x3F) << 6 | (byte(begin + 2) & 0x3F);
  }
  at += 4;
  return (lead & 0x07) << 18 | (byte(begin + 1) & 0x3F) << 12 | (byte(begin + 2) & 0x3F) << 6 |
         (byte(begin + 3) & 0x3F);
}

void AppendChar(std::string& text, uint32_t c) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

bool IsSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view Normalize(std::string_view text, NormalForm form, std::string& scratch) {
  const size_t plain = PlainPrefix(text, form == NormalForm::kNfc ? 0xCC : 0x80);
  if (plain == text.size()) return text;
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &out, static_cast<utf8proc_option_t>(options));
  if (length < 0) {
    throw Error(ErrorCode::kData, "DAT024",
                std::string("Unicode normalisation of ") + std::to_string(text.size()) +
                    " bytes failed: " + utf8proc_errmsg(length),
                "tokeniser", "split documents of gigabytes into smaller ones");
  }
  scratch.assign(reinterpret_cast<const char*>(out), static_cast<size_t>(length));
  std::free(out);
  return scratch;
}

const std::array<uint32_t, 256>& ByteSymbols() {
  static const std::array<uint32_t, 256> symbols = [] {
    std::array<uint32_t, 256> out{};
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      out[b] = printable ? b : next++;
    }
    return out;
  }();
  return symbols;
}

std::string SymbolsOfBytes(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) AppendChar(out, ByteSymbols()[static_cast<unsigned char>(byte)]);
  return out;
}

std::optional<std::string> BytesOfSymbols(std::string_view symbols) {
  static const std::array<int16_t, 324> bytes = [] {  // the last symbol is U+0143
    std::array<int16_t, 324> out;
    out.fill(-1);
    for (int16_t b = 0; b < 256; ++b) out[ByteSymbols()[static_cast<size_t>(b)]] = b;
    return out;
  }();
  std::string out;
  for (size_t at = 0; at < symbols.size();) {
    const uint32_t c = TakeChar(symbols, at);
    if (c >= bytes.size() || bytes[c] < 0) return std::nullopt;
    out += static_cast<char>(bytes[c]);
  }
  return out;
}

}  // namespace trireme::data
