// Typed reads of environment variables. Only this room and launcher/ read the environment; README.md lists every name.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace trireme::env {

std::optional<std::string> Text(const char* name);  // unset and empty are the same
// Throws Error{kEnvironment, ENV001} naming variable and value if it is set to something else than an integer.
std::optional<int64_t> Integer(const char* name);
// The first number of a list such as OMP_NUM_THREADS=4,2. nullopt if unset, or if it does not begin with an integer
// that ends the text or stands before a comma: for variables of other programs, whose mistakes are theirs to report.
std::optional<int64_t> FirstInteger(const char* name);
bool Flag(const char* name);  // 1, true, yes, on
// For libraries that read their settings later. A value that the user has set stays. Before other threads start.
void SetDefault(const char* name, const char* value);

}  // namespace trireme::env
