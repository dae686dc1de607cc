#include "engine/cli/leave.h"

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "engine/base/error.h"

namespace trireme::cli {

void Leave(int exit_code) {
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

int RunOrLeave(const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    Leave(ExitCode(error.code()));
  } catch (const std::bad_alloc&) {
    fmt::print(stderr,
               "error CLI005: this machine has no memory left for the program\n"
               "  fix: `trireme plan` says what the job needs; use more ranks or a higher ZeRO stage\n");
    Leave(ExitCode(ErrorCode::kEnvironment));
  } catch (const std::exception& error) {
    fmt::print(stderr,
               "error CLI006: {}\n"
               "  fix: this is a bug of Trireme or of a library below it; please report it with the command\n",
               error.what());
    Leave(ExitCode(ErrorCode::kInternal));
  }
}

}  // namespace trireme::cli
