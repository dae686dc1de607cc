// trireme plan: what a config means for a model on so many ranks, without a GPU and without LibTorch. Exit code 1 if it
// does not fit the memory of a device (--cluster, --gpu-memory-gib).
#include <fmt/core.h>

#include "engine/base/error.h"
#include "engine/cli/commands.h"
#include "engine/cli/plan_request.h"
#include "engine/cli/plan_suggest.h"
#include "engine/cli/plan_text.h"

namespace trireme::cli {

int RunPlan(Arguments arguments) {
  const PlanOptions options = ParsePlanFlags(arguments);
  if (options.help) {
    fmt::print("{}", PlanHelp());
    return 0;
  }
  const Planned planned = PlanRequested(options);
  const std::optional<Verdict> verdict = VerdictOf(options, planned);
  bool fine = !verdict || verdict->fits;
  if (options.json) {
    fmt::print("{}", PlanJson(planned, verdict));
    return fine ? 0 : ExitCode(ErrorCode::kCheckFailed);
  }
  PrintLayout(planned);
  PrintResolved(planned.config, options.resolved);
  PrintMemory(planned.plan);
  PrintTraffic(planned);
  PrintPrediction(planned);
  for (const std::string& note : planned.warnings) Line("warning", note);
  for (const std::string& text : planned.advice) Line("advice", text);
  if (verdict) PrintVerdict(planned, *verdict);
  const PlanAdvice advice{options, planned, verdict ? verdict->device_bytes : 0, arguments};
  if (!fine) PrintChanges(advice);
  if (!options.suggest.empty()) fine = PrintSuggestion(advice);
  return fine ? 0 : ExitCode(ErrorCode::kCheckFailed);
}

}  // namespace trireme::cli
