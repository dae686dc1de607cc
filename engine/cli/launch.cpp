// trireme launch: starts the ranks of a job on this machine.
#include <fmt/core.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/strings.h"
#include "engine/base/version.h"
#include "engine/cli/commands.h"
#include "engine/cli/engine_exec.h"
#include "launcher/devices.h"
#include "launcher/job.h"
#include "launcher/local.h"
#include "launcher/options.h"
#include "launcher/port.h"

namespace trireme::cli {
namespace {

using launcher::LaunchOptions;
using launcher::LocalJob;

log::Level LowestLevel(const std::string& level) {
  if (level == "debug") return log::Level::kDebug;
  if (level == "info") return log::Level::kInfo;
  return level == "warning" ? log::Level::kWarn : log::Level::kError;
}

LocalJob PlanJob(const LaunchOptions& options, int master_port) {
  std::optional<launcher::HostSlots> hostfile;
  if (!options.hostfile.empty()) hostfile = launcher::ReadHostfile(options.hostfile, launcher::OwnNames());
  const launcher::Devices devices = launcher::MakeDevices(launcher::CountGpus("/"), launcher::VisibleDevicesVariable());
  const launcher::DeviceChoice choice = launcher::ChooseDevices(options, devices, hostfile);
  const launcher::Surroundings around = launcher::FindSurroundings(options);
  if (!IsEngineCommand(options.program)) {
    return MakeJob(options, launcher::ResolveProgram(options.program, EngineCommands()), options.arguments, choice,
                   master_port, around);
  }
  std::vector<std::string> words = {options.program};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  LaunchOptions own = options;
  own.pass_local_rank = false;  // our trainer reads LOCAL_RANK
  LocalJob job = MakeJob(own, EnginePath(), words, choice, master_port, around);
  const std::string library_path = EngineLibraryPath(ProgramFolder());
  for (launcher::RankSpec& rank : job.ranks) {
    rank.environment[kExpectVersionVariable] = Version();
    if (!library_path.empty()) rank.environment["LD_LIBRARY_PATH"] = library_path;
  }
  return job;
}

}  // namespace

int RunLaunch(Arguments arguments) {
  const LaunchOptions options = launcher::ParseLaunchOptions(arguments);
  if (options.help) {
    fmt::print("{}", launcher::LaunchHelp());
    return 0;
  }
  log::SetRank("", LowestLevel(options.log_level));
  launcher::CheckNotARank();
  for (const std::string& flag : launcher::MisplacedFlags(options)) {
    log::Warn("{} stands behind {} and was passed to it; flags of launch stand before it", flag, options.program);
  }
  const launcher::RendezvousPort port = launcher::ChoosePort(options.master_port);
  const LocalJob job = PlanJob(options, port.port());
  if (options.dry_run) {
    fmt::print("{}", launcher::PrintJob(job));
    return 0;
  }
  log::Info("{}", launcher::DescribeJob(job));
  if (!options.master_port && port.port() != 29500) log::Info("port 29500 is taken: this job uses {}", port.port());
  if (job.keep_logs) log::Info("output of each rank: {}/{}_rank*.log", job.log_dir.string(), job.stamp);
  const launcher::JobOutcome outcome = launcher::RunJob(job);
  std::fputs(outcome.report.c_str(), stderr);
  return outcome.exit_code;
}

}  // namespace trireme::cli
