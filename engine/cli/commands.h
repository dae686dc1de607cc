// The subcommands. Each gets the words after its name, reads them, does its work and returns the exit code of the
// process; main() prints an escaping trireme::Error and turns it into its exit code. Of the rooms, only this one prints
// and ends the process.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cli {

using Arguments = const std::vector<std::string>&;

enum class Program : uint8_t { kTrireme, kEngine, kBoth };

struct Command {
  std::string_view name, summary;
  Program program;  // that runs it; kBoth: trireme, which asks the engine for a part
};

// Every command, in the order of `trireme --help`. Each program binds its own to functions (Handler below).
inline constexpr auto kCommands = std::to_array<Command>({
    {"launch", "start the ranks of a job on this machine and end them together", Program::kTrireme},
    {"train", "one rank of the trainer", Program::kEngine},
    {"plan", "batch arithmetic, layout and memory of a config, without a GPU", Program::kTrireme},
    {"bench", "layouts side by side on this machine, and what was predicted", Program::kTrireme},
    {"explain", "what a key of the config means, its default and effects", Program::kTrireme},
    {"data", "tokenise text, check .bin/.idx files", Program::kTrireme},
    {"inspect", "what a checkpoint holds, and whether it is whole", Program::kTrireme},
    {"convert", "a checkpoint into a Hugging Face folder", Program::kTrireme},
    {"generate", "continue texts with a model", Program::kEngine},
    {"eval", "a model's loss, perplexity and bits per byte over a text", Program::kEngine},
    {"selfcheck", "whether all layouts train alike on this machine", Program::kEngine},
    {"doctor", "what stands in the way on this machine; --calibrate measures it for plan", Program::kBoth},
});

struct Handler {
  std::string_view name;
  int (*run)(Arguments);
};

// Do `handlers` run the commands of `program`, all of them and no other?
template <size_t kCount>
consteval bool RunsAllOf(Program program, const std::array<Handler, kCount>& handlers) {
  size_t found = 0, wanted = 0;
  for (const Command& command : kCommands) {
    if (command.program != program && command.program != Program::kBoth) continue;
    ++wanted;
    for (const Handler& handler : handlers) found += handler.name == command.name ? 1 : 0;
  }
  return found == wanted && wanted == kCount;
}

// `trireme`: no LibTorch.
int RunLaunch(Arguments arguments);   // launch.cpp
int RunPlan(Arguments arguments);     // plan.cpp
int RunBench(Arguments arguments);    // bench.cpp
int RunExplain(Arguments arguments);  // explain.cpp
int RunData(Arguments arguments);     // data.cpp
int RunInspect(Arguments arguments);  // inspect.cpp
int RunConvert(Arguments arguments);  // convert.cpp
int RunDoctor(Arguments arguments);   // doctor.cpp; the engine's part: doctor_engine.cpp

// `trireme-engine`, which `trireme` starts from its own folder (engine_exec.h).
int RunTrain(Arguments arguments);      // train.cpp
int RunGenerate(Arguments arguments);   // generate.cpp
int RunEval(Arguments arguments);       // eval.cpp
int RunSelfcheck(Arguments arguments);  // selfcheck.cpp

}  // namespace trireme::cli
