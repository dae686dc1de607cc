#include "engine/cli/engine_exec.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>

#include "engine/base/env.h"
#include "engine/base/error.h"
#include "engine/base/strings.h"
#include "engine/base/version.h"
#include "engine/cli/commands.h"

namespace trireme::cli {

std::vector<std::string> EngineCommands() {
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (command.program != Program::kTrireme) names.emplace_back(command.name);
  }
  return names;
}

bool IsEngineCommand(std::string_view word) {
  return std::ranges::any_of(kCommands,
                             [&](const Command& c) { return c.program != Program::kTrireme && c.name == word; });
}

std::filesystem::path ProgramFolder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    throw Error(ErrorCode::kEnvironment, "CLI003", "cannot find the folder of this program: " + error.message(),
                "/proc/self/exe", "mount /proc");
  }
  return self.parent_path();
}

std::filesystem::path EnginePath() {
  const std::filesystem::path engine = ProgramFolder() / "trireme-engine";
  if (access(engine.c_str(), X_OK) != 0) {
    throw Error(ErrorCode::kEnvironment, "CLI002", fmt::format("cannot be executed: {}", std::strerror(errno)),
                engine.string(),
                "build the target trireme-engine (it needs LibTorch), or install both programs into one folder");
  }
  return engine;
}

std::string EngineLibraryPath(const std::filesystem::path& program_folder) {
  namespace fs = std::filesystem;
  const fs::path link = program_folder.parent_path() / "lib/libtorch";
  std::error_code ignored;
  if (!fs::is_symlink(link, ignored) || fs::exists(link / "lib/libtorch_cpu.so", ignored)) return "";
  const std::string named = env::Text("LIBTORCH").value_or("");
  if (named.empty() || !fs::exists(fs::path(named) / "lib/libtorch_cpu.so", ignored)) {
    throw Error(
        ErrorCode::kEnvironment, "CLI008",
        fmt::format("leads to {}, where there is no LibTorch; LIBTORCH is {}", fs::read_symlink(link, ignored).string(),
                    named.empty() ? "not set" : named + ", nor there"),
        link.string(),
        fmt::format("ln -sfn FOLDER {}, or LIBTORCH=FOLDER; FOLDER holds lib/libtorch_cpu.so", link.string()));
  }
  const std::optional<std::string> before = env::Text("LD_LIBRARY_PATH");
  return named + "/lib" + (before ? ":" + *before : "");
}

void ExecEngine(const std::vector<std::string>& words) {
  const std::filesystem::path engine = EnginePath();
  setenv(kExpectVersionVariable, std::string(Version()).c_str(), 1);
  const std::string library_path = EngineLibraryPath(engine.parent_path());
  if (!library_path.empty()) setenv("LD_LIBRARY_PATH", library_path.c_str(), 1);
  std::string name = engine.string();
  std::vector<char*> argv = {name.data()};
  std::vector<std::string> copies = words;
  for (std::string& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(engine.c_str(), argv.data());
  throw Error(ErrorCode::kEnvironment, "CLI002", fmt::format("cannot be executed: {}", std::strerror(errno)),
              engine.string(), "build the target trireme-engine again for this machine");
}

std::string EngineOutput(const std::vector<std::string>& words, std::chrono::seconds time) {
  EnginePath();  // throws here, not in the child
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) {
    throw Error(ErrorCode::kEnvironment, "CLI020", fmt::format("cannot be started: {}", std::strerror(errno)),
                "trireme-engine", "raise `ulimit -n`");
  }
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    try {
      ExecEngine(words);
    } catch (const Error& error) {
      fmt::print(stderr, "{}\n", error.what());
    }
    _exit(ExitCode(ErrorCode::kEnvironment));
  }
  close(ends[1]);
  std::string output;
  const auto deadline = std::chrono::steady_clock::now() + time;
  bool late = child < 0;
  for (std::array<char, 4096> bytes{}; !late;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd readable{ends[0], POLLIN, 0};
    late = left.count() <= 0 || poll(&readable, 1, static_cast<int>(left.count())) == 0;
    const ssize_t count = late ? 0 : read(ends[0], bytes.data(), bytes.size());
    if (count <= 0) break;
    output.append(bytes.data(), static_cast<size_t>(count));
  }
  close(ends[0]);
  if (late && child > 0) kill(child, SIGKILL);
  int status = 0;
  const bool ended = child > 0 && waitpid(child, &status, 0) == child && !late && WIFEXITED(status);
  if (ended && WEXITSTATUS(status) == 0) return output;
  throw Error(ErrorCode::kEnvironment, "CLI020",
              late    ? fmt::format("did not end within {} s", time.count())
              : ended ? fmt::format("ended with exit code {}", WEXITSTATUS(status))
                      : fmt::format("was ended by signal {}", WTERMSIG(status)),
              "trireme-engine " + Join(words, " "), "run it by hand; a driver that hangs shows in dmesg");
}

void CheckExpectedVersion() {
  const std::optional<std::string> expected = env::Text(kExpectVersionVariable);
  if (!expected || *expected == Version()) return;
  throw Error(
      ErrorCode::kEnvironment, "CLI004",
      fmt::format("trireme is version {}, trireme-engine in the same folder is version {}", *expected, Version()),
      ProgramFolder().string(), "build or install both programs from the same source");
}

}  // namespace trireme::cli
