#include "engine/cli/leave.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "engine/base/error.h"
#include "engine/base/printable.h"

namespace trireme::cli {
namespace {

Error LostOutput(int reason) {
  return {ErrorCode::kEnvironment, "CLI009",
          fmt::format("cannot be written: {}", reason == 0 ? "an earlier write failed" : std::strerror(reason)),
          "standard output", "free space where it goes, or give the command an output that stays open"};
}

[[noreturn]] void PrintAndLeave(const Error& error) {
  fmt::print(stderr, "{}\n", Printable(error.what(), std::string_view::npos, /*kept=*/"\n"));
  Leave(ExitCode(error.code()));
}

}  // namespace

void Leave(int exit_code) {
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

void FlushOutput() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (!flushed || std::ferror(stdout) != 0) throw LostOutput(flushed ? 0 : errno);
}

void HoldStandardStreams() {
  int place = 0;
  while (place >= 0 && place <= 2) place = ::open("/dev/null", O_RDONLY);  // the lowest free number
  if (place > 2) ::close(place);
}

int RunOrLeave(const std::function<int()>& body) {
  try {
    const int exit_code = body();
    FlushOutput();
    return exit_code;
  } catch (const Error& error) {
    PrintAndLeave(error);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr,
               "error {}: this machine has no memory left for the program\n"
               "  fix: `trireme plan` says what the job needs; use more ranks or a higher ZeRO stage\n",
               "CLI005");
    Leave(ExitCode(ErrorCode::kEnvironment));
  } catch (const std::exception& error) {
    if (std::ferror(stdout) != 0) {  // fmt's, from the middle of a print
      const auto* system = dynamic_cast<const std::system_error*>(&error);
      PrintAndLeave(LostOutput(system != nullptr ? system->code().value() : 0));
    }
    fmt::print(stderr,
               "error {}: {}\n"
               "  fix: this is a bug of Trireme or of a library below it; please report it with the command\n",
               "CLI006", error.what());
    Leave(ExitCode(ErrorCode::kInternal));
  }
}

}  // namespace trireme::cli
