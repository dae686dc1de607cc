// The sections of docs/errors, which are a part of the program: `trireme explain CFG020` works wherever it is
// installed.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace trireme::cli {

bool IsErrorId(std::string_view word);                      // three letters and three digits
std::optional<std::string> ErrorText(std::string_view id);  // in upper case; nullopt: no message has it

}  // namespace trireme::cli
