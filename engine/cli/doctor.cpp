// trireme doctor: what of this machine stands in the way of training, and what to do about it. Exit code 1 if something
// does. With --calibrate: how fast the machine is, as `plan --cluster` reads it.
#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/cli/commands.h"
#include "engine/cli/engine_exec.h"
#include "engine/cli/error_json.h"
#include "engine/cli/findings.h"
#include "engine/cli/host_findings.h"
#include "engine/cli/nvml.h"
#include "launcher/devices.h"
#include "launcher/job.h"
#include "parsers/flag_set.h"

namespace trireme::cli {
namespace {

constexpr std::chrono::seconds kEngineTime{120};  // a first use of eight GPUs takes some ten

// Processes that measure a machine without GPUs: together they are its processor, and there are links between them.
constexpr int64_t kCpuRanks = 2;

struct Request {
  std::string nvme_path, out = "this-machine.json", device, help_text;
  bool json = false, calibrate = false, quick = false, help = false;
};

Request Parse(Arguments arguments) {
  Request r;
  FlagSet flags("doctor");
  flags.AddHeading("Looks at this machine and says what to fix. Exit code 1 if there is a problem.");
  flags.Add("nvme-path", "DIR", "folder of states that are offloaded to a disk; the current one if not given",
            r.nvme_path);
  flags.Add("json", "one JSON object", r.json);
  flags.AddHeading("With --calibrate: measures the machine and writes the file that `plan --cluster` takes.");
  flags.Add("calibrate", "measure products, attention, memory, copies, links and disk, about a minute", r.calibrate);
  flags.Add("out", "FILE", "where the description goes", r.out);
  flags.Add("device", "cpu|cuda", "what is measured; all GPUs shown, where there are any, if not given", r.device);
  flags.Add("quick", "seconds instead, and rough", r.quick);
  flags.Add("help", "this text", r.help);
  r.help_text = flags.Help();
  flags.Parse(arguments);
  for (const char* flag : {"out", "device", "quick"}) {
    if (!flags.Given(flag) || r.calibrate || r.help) continue;
    throw Error(ErrorCode::kUsage, "USE004", "says how to measure, and nothing is measured without --calibrate",
                std::string("--") + flag, "pass --calibrate too, or remove it");
  }
  return r;
}

// What only the engine can say: its libraries, and whether a GPU computes.
Findings EngineFindings() {
  try {
    const Findings found = ReadFindingLines(EngineOutput({"doctor"}, kEngineTime));
    if (!found.empty()) return found;
    return {{Health::kProblem, "engine", "says nothing", "trireme-engine doctor", "build both programs again"}};
  } catch (const Error& error) {
    return {{Health::kProblem, "engine", error.message(), error.where(), error.fix()}};
  }
}

// A job of one rank a GPU, or of CPU ranks: they measure together, and the first one writes.
int Calibrate(const Request& request) {
  const launcher::Devices devices = launcher::MakeDevices(launcher::CountGpus("/"), launcher::VisibleDevicesVariable());
  const bool cpu = request.device == "cpu" || (request.device.empty() && devices.tokens.empty());
  const int64_t ranks = cpu ? kCpuRanks : static_cast<int64_t>(devices.tokens.size());
  std::vector<std::string> words = {"--num_gpus", std::to_string(ranks), "--master_port", "0", "--log_level", "error"};
  if (cpu) words.emplace_back("--cpu");
  words.insert(words.end(), {"doctor", "--calibrate", "--out", request.out});
  if (request.quick) words.emplace_back("--quick");
  if (!request.nvme_path.empty()) words.insert(words.end(), {"--nvme-path", request.nvme_path});
  if (request.json) words.emplace_back("--json");
  return RunLaunch(words);
}

int Run(Arguments arguments) {
  const Request request = Parse(arguments);
  if (request.help) {
    fmt::print("{}", request.help_text);
    return 0;
  }
  if (request.calibrate) return Calibrate(request);
  Findings found = HostFindings({.nvme_path = request.nvme_path});
  Append(found, GpuFindings());
  Append(found, EngineFindings());
  fmt::print("{}", request.json ? FindingsJson(found) : FindingsText(found));
  return ExitCodeOf(found);
}

}  // namespace

int RunDoctor(Arguments arguments) {
  return OrErrorJson(arguments, [&] { return Run(arguments); });
}

}  // namespace trireme::cli
