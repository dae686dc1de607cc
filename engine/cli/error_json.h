// What --json prints where a command ends with an error, so that standard output is never empty.
//   return OrErrorJson(arguments, [&] { return Run(arguments); });
#pragma once
#include <functional>
#include <string>

#include "engine/base/error.h"
#include "engine/cli/commands.h"

namespace trireme::cli {

// One object: schema, version, exit_code, and problems with severity, id, file, line, column, key, what and fix
// (docs/plan.md). A problem without a line has what the message names in `key`.
std::string ErrorJson(const Error& error);

// Runs `body`; if --json is among the arguments and it throws an Error, prints that first.
int OrErrorJson(Arguments arguments, const std::function<int()>& body);

}  // namespace trireme::cli
