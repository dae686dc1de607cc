// trireme-engine: the subcommands that compute. `trireme` starts it from its own folder.
#include <fmt/core.h>

#include <array>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/version.h"
#include "engine/cli/commands.h"
#include "engine/cli/engine_exec.h"
#include "engine/cli/leave.h"
#include "engine/comm/store.h"

namespace {

using trireme::cli::Handler;

constexpr auto kHandlers = std::to_array<Handler>({
    {"train", trireme::cli::RunTrain},
    {"generate", trireme::cli::RunGenerate},
    {"selfcheck", trireme::cli::RunSelfcheck},
    {"eval", trireme::cli::RunEval},
    {"doctor", trireme::cli::RunDoctor},
});
static_assert(trireme::cli::RunsAllOf(trireme::cli::Program::kEngine, kHandlers));

int Dispatch(const std::vector<std::string>& words) {
  if (!words.empty() && words[0] == "--version") {
    fmt::print("trireme-engine {}\n", trireme::Version());
    return 0;
  }
  trireme::cli::CheckExpectedVersion();
  std::string names;
  for (const Handler& handler : kHandlers) {
    if (!words.empty() && handler.name == words[0]) return handler.run({words.begin() + 1, words.end()});
    names += names.empty() ? "" : ", ";
    names += handler.name;
  }
  throw trireme::Error(trireme::ErrorCode::kUsage, "CLI007", "the engine has no such command",
                       words.empty() ? "command line" : words[0], "start it as `trireme COMMAND`; it has " + names);
}

// Ranks after the first speak from warnings up, with their label.
void LabelRank() {
  const int rank = trireme::RendezvousInfo::FromEnvironment().rank;
  if (rank > 0) trireme::log::SetRank(fmt::format("rank {}", rank), trireme::log::Level::kWarn);
}

}  // namespace

int main(int argc, char** argv) {
  trireme::cli::HoldStandardStreams();
  trireme::cli::Leave(trireme::cli::RunOrLeave([&] {
    LabelRank();
    return Dispatch({argv + (argc > 0 ? 1 : 0), argv + argc});
  }));
}
