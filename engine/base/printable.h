// Texts that others wrote (keys, values, names of files), as a terminal may get them.
//   fmt::print("{}\n", Printable(key, 200));  // "a\x1b[2Jb": what would steer the terminal is shown, not sent
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace trireme {

// Bytes of the UTF-8 sequence that begins at `at`; 0 if none does (RFC 3629, 4).
size_t Utf8Length(std::string_view text, size_t at);

// Control characters, marks that turn the direction of writing, and bytes that are no UTF-8 become \xNN, but for the
// characters of `kept`. Of a longer text the first `longest` bytes and "...", never a part of a character.
std::string Printable(std::string_view text, size_t longest = std::string_view::npos, std::string_view kept = "");

}  // namespace trireme
