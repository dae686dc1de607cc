// JSON from files that may be damaged or hostile: a duplicate key, more than 64 levels, bad UTF-8 or trailing text is
// an error.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace trireme::checkpoint {

// false: `problem` says what is wrong, with the byte where the parser stopped.
bool ParseStrictJson(std::string_view text, nlohmann::json& value, std::string& problem);

}  // namespace trireme::checkpoint
