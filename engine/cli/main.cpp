// trireme: everything that needs no LibTorch, in one small program that starts in milliseconds; it hands the
// subcommands that compute over to trireme-engine.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "engine/base/version.h"
#include "engine/cli/commands.h"
#include "engine/cli/engine_exec.h"
#include "engine/cli/leave.h"

namespace {

using trireme::cli::Command;
using trireme::cli::Handler;
using trireme::cli::kCommands;
using trireme::cli::Program;

constexpr auto kHandlers = std::to_array<Handler>({
    {"launch", trireme::cli::RunLaunch},
    {"plan", trireme::cli::RunPlan},
    {"bench", trireme::cli::RunBench},
    {"explain", trireme::cli::RunExplain},
    {"data", trireme::cli::RunData},
    {"inspect", trireme::cli::RunInspect},
    {"convert", trireme::cli::RunConvert},
    {"doctor", trireme::cli::RunDoctor},
});
static_assert(trireme::cli::RunsAllOf(Program::kTrireme, kHandlers));

std::string Help() {
  std::string text = "usage: trireme COMMAND [flags]\n\n";
  for (const Command& command : kCommands) text += fmt::format("  {:<10} {}\n", command.name, command.summary);
  return text + "\n`trireme COMMAND --help` lists a command's flags. `trireme --version` prints the version.\n";
}

int Dispatch(const std::vector<std::string>& words) {
  if (words.empty()) {
    fmt::print(stderr, "{}", Help());
    return trireme::ExitCode(trireme::ErrorCode::kUsage);
  }
  if (words[0] == "--version") {
    fmt::print("trireme {}\n", trireme::Version());
    return 0;
  }
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    fmt::print("{}", Help());
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (command.name != words[0]) {
      names.emplace_back(command.name);
      continue;
    }
    if (command.program == Program::kEngine) trireme::cli::ExecEngine(words);
    return std::ranges::find(kHandlers, command.name, &Handler::name)->run({words.begin() + 1, words.end()});
  }
  const std::optional<std::string> near = trireme::Suggest(words[0], names);
  throw trireme::Error(trireme::ErrorCode::kUsage, "CLI001", "no such command", words[0],
                       near ? "did you mean `trireme " + *near + "`?" : "`trireme --help` lists the commands");
}

}  // namespace

int main(int argc, char** argv) {
  trireme::cli::HoldStandardStreams();
  return trireme::cli::RunOrLeave([&] { return Dispatch({argv + (argc > 0 ? 1 : 0), argv + argc}); });
}
