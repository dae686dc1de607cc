// How the programs end: the error of a run is printed before anything is torn down, and a rank that failed leaves at
// once, since its lanes may wait for ranks that will never answer. Output that cannot be written is an error too.
#pragma once
#include <functional>

namespace trireme::cli {

// Ends the process without destructors, after flushing what was printed.
[[noreturn]] void Leave(int exit_code);

// Runs `body`; an exception that escapes it is printed and ends the process with its exit code, and so does output that
// was lost (CLI009).
int RunOrLeave(const std::function<int()>& body);

// Writes out what was printed. Throws Error{kEnvironment, CLI009} if standard output does not take it, now or before.
void FlushOutput();

// Where the caller closed standard input, output or error, their numbers would go to the next files that are opened,
// and messages into those: holds their places by something that cannot be written. Call it first.
void HoldStandardStreams();

}  // namespace trireme::cli
