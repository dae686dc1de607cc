// How `trireme` hands over to `trireme-engine`, the program above the LibTorch line, in the same folder.
//   ExecEngine({"train", "--deepspeed_config", "ds_config.json"});   // in trireme
//   CheckExpectedVersion();                                          // first thing in trireme-engine
// The version travels in an environment variable, so the check costs neither a second process nor a word on the command
// line.
#pragma once
#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cli {

inline constexpr const char* kExpectVersionVariable = "TRIREME_EXPECT_VERSION";

// The names of kCommands that trireme-engine runs, alone or a part of them.
std::vector<std::string> EngineCommands();
bool IsEngineCommand(std::string_view word);

// Folder of the running program, symbolic links resolved. Throws Error{kEnvironment, CLI003}.
std::filesystem::path ProgramFolder();

// The engine beside the running program. Throws Error{kEnvironment, CLI002} if it is not there or cannot be executed.
std::filesystem::path EnginePath();

// What the engine's LD_LIBRARY_PATH must be; "" if it needs none. An installed folder has LibTorch, or a link to it, in
// lib/libtorch; where the link leads nowhere, as in a folder that came from another machine, LIBTORCH says where to
// look. Throws Error{kEnvironment, CLI008} if neither leads to one.
std::string EngineLibraryPath(const std::filesystem::path& program_folder);

// Replaces this process by the engine; returns only by throwing Error{kEnvironment, CLI002 or CLI008}.
[[noreturn]] void ExecEngine(const std::vector<std::string>& words);

// Runs the engine to its end and returns what it printed. Throws as ExecEngine, and Error{kEnvironment, CLI020} if it
// does not end well within the time: then it is killed.
std::string EngineOutput(const std::vector<std::string>& words, std::chrono::seconds time);

// Throws Error{kEnvironment, CLI004} if the caller was built as another version; does nothing when started by hand.
void CheckExpectedVersion();

}  // namespace trireme::cli
