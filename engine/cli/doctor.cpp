// trireme doctor: what of this machine stands in the way of training, and what to do about it. Exit code 1 if something
// does.
#include <fmt/core.h>

#include <chrono>
#include <string>

#include "engine/base/error.h"
#include "engine/cli/commands.h"
#include "engine/cli/engine_exec.h"
#include "engine/cli/findings.h"
#include "engine/cli/host_findings.h"
#include "engine/cli/nvml.h"
#include "parsers/flag_set.h"

namespace trireme::cli {
namespace {

constexpr std::chrono::seconds kEngineTime{120};  // a first use of eight GPUs takes some ten

struct Request {
  std::string nvme_path, help_text;
  bool json = false, help = false;
};

Request Parse(Arguments arguments) {
  Request r;
  FlagSet flags("doctor");
  flags.AddHeading("Looks at this machine and says what to fix. Exit code 1 if there is a problem.");
  flags.Add("nvme-path", "DIR", "folder of states that are offloaded to a disk; the current one if not given",
            r.nvme_path);
  flags.Add("json", "one JSON object", r.json);
  flags.Add("help", "this text", r.help);
  r.help_text = flags.Help();
  flags.Parse(arguments);
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

}  // namespace

int RunDoctor(Arguments arguments) {
  const Request request = Parse(arguments);
  if (request.help) {
    fmt::print("{}", request.help_text);
    return 0;
  }
  Findings found = HostFindings({.nvme_path = request.nvme_path});
  Append(found, GpuFindings());
  Append(found, EngineFindings());
  fmt::print("{}", request.json ? FindingsJson(found) : FindingsText(found));
  return ExitCodeOf(found);
}

}  // namespace trireme::cli
