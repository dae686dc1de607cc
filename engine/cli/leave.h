// How the programs end: the error of a run is printed before anything is torn down, and a rank that failed leaves at
// once, since its lanes may wait for ranks that will never answer.
#pragma once
#include <functional>

namespace trireme::cli {

// Ends the process without destructors, after flushing what was printed.
[[noreturn]] void Leave(int exit_code);

// Runs `body`; an exception that escapes it is printed and ends the process with its exit code.
int RunOrLeave(const std::function<int()>& body);

}  // namespace trireme::cli
