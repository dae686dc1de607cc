// The subcommands. Each gets the words after its name, reads them, does its work and returns the exit code of the
// process; main() prints an escaping trireme::Error and turns it into its exit code. Of the rooms, only this one prints
// and ends the process.
#pragma once
#include <string>
#include <vector>

namespace trireme::cli {

using Arguments = const std::vector<std::string>&;

// `trireme`: no LibTorch.
int RunLaunch(Arguments arguments);   // launch.cpp
int RunPlan(Arguments arguments);     // plan.cpp
int RunData(Arguments arguments);     // data.cpp
int RunInspect(Arguments arguments);  // inspect.cpp

// `trireme-engine`, which `trireme` starts from its own folder (engine_exec.h).
int RunTrain(Arguments arguments);     // train.cpp
int RunGenerate(Arguments arguments);  // generate.cpp

}  // namespace trireme::cli
