// Characters, as byte-level tokenisers need them: UTF-8, white space, composed forms, and GPT-2's table that gives each
// byte a printable character.
//   std::optional<std::string> bytes = BytesOfSymbols("Ġthe");   // " the"
// Pure functions.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::data {

// Bytes of the longest prefix that is valid UTF-8 (no surrogates, no overlong forms).
size_t ValidUtf8Prefix(std::string_view text);
// Bytes from the front that are not the start of a valid character; 0 if the first character is valid.
size_t InvalidUtf8Prefix(std::string_view text);

// The character at `at`, which moves behind it. `text` is valid there.
uint32_t TakeChar(std::string_view text, size_t& at);
void AppendChar(std::string& text, uint32_t c);

bool IsSpace(uint32_t c);  // Unicode's White_Space

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
// Unicode normalisation (UAX 15, by utf8proc) of valid text. `scratch` is filled only if the text changes; the result
// is a view of one of the two.
std::string_view Normalize(std::string_view text, NormalForm form, std::string& scratch);

// GPT-2's table: printable bytes of Latin-1 stand for themselves, the others for U+0100 and up, in order.
const std::array<uint32_t, 256>& ByteSymbols();
std::string SymbolsOfBytes(std::string_view bytes);
std::optional<std::string> BytesOfSymbols(std::string_view symbols);  // nullopt: holds a character without a byte

}  // namespace trireme::data
