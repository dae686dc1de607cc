// trireme-engine: the subcommands that compute. `trireme` starts it from its own folder.
#include <fmt/core.h>

#include <array>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/env.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/version.h"
#include "engine/cli/commands.h"
#include "engine/cli/engine_exec.h"

namespace {

struct Command {
  std::string_view name;
  int (*run)(trireme::cli::Arguments);
};

constexpr auto kCommands = std::to_array<Command>({
    {"train", trireme::cli::RunTrain},
    {"generate", trireme::cli::RunGenerate},
});

int Dispatch(const std::vector<std::string>& words) {
  if (!words.empty() && words[0] == "--version") {
    fmt::print("trireme-engine {}\n", trireme::Version());
    return 0;
  }
  trireme::cli::CheckExpectedVersion();
  std::string names;
  for (const Command& command : kCommands) {
    if (!words.empty() && command.name == words[0]) return command.run({words.begin() + 1, words.end()});
    names += names.empty() ? "" : ", ";
    names += command.name;
  }
  throw trireme::Error(trireme::ErrorCode::kUsage, "CLI007", "the engine has no such command",
                       words.empty() ? "command line" : words[0], "start it as `trireme COMMAND`; it has " + names);
}

// Ranks after the first speak from warnings up, with their label.
void LabelRank() {
  const int64_t rank = trireme::env::Integer("RANK").value_or(0);
  if (rank > 0) trireme::log::SetRank(fmt::format("rank {}", rank), trireme::log::Level::kWarn);
}

}  // namespace

int main(int argc, char** argv) {
  // A rank that fails leaves at once: its lanes may wait for ranks that will never answer, so no destructor is waited
  // for.
  const auto leave = [](int code) {
    std::fflush(nullptr);
    std::_Exit(code);
  };
  try {
    LabelRank();
    const int code = Dispatch({argv + (argc > 0 ? 1 : 0), argv + argc});
    leave(code);
  } catch (const trireme::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    leave(trireme::ExitCode(error.code()));
  } catch (const std::bad_alloc&) {
    std::fputs(
        "error CLI005: this machine has no memory left for the program\n  fix: `trireme plan` says what the job needs; "
        "use more ranks or a higher ZeRO stage\n",
        stderr);
    leave(trireme::ExitCode(trireme::ErrorCode::kEnvironment));
  } catch (const std::exception& error) {
    fmt::print(stderr,
               "error CLI006: {}\n  fix: this is a bug of Trireme or of a library below it; please report it with the "
               "command\n",
               error.what());
    leave(trireme::ExitCode(trireme::ErrorCode::kInternal));
  }
}
