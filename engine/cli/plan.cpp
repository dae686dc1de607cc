// trireme plan: what a config means for a model on so many ranks, without a GPU and without LibTorch. Exit code 1 if it
// does not fit the memory of a device (--cluster, --gpu-memory-gib).
#include <fmt/core.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/cli/commands.h"
#include "engine/cli/error_json.h"
#include "engine/cli/plan_config.h"
#include "engine/cli/plan_request.h"
#include "engine/cli/plan_suggest.h"
#include "engine/cli/plan_text.h"
#include "engine/report/plan_page.h"

namespace trireme::cli {

namespace {

void WritePage(const PlanOptions& options, const Planned& planned, double device_bytes) {
  // Where there is none Predict says what the cluster's description lacks.
  const Prediction prediction = planned.prediction ? *planned.prediction : Predict(planned.plan, *planned.cluster);
  WriteFileDurably(options.html, report::PlanPage(planned.plan, *planned.cluster, prediction, device_bytes),
                   ErrorCode::kEnvironment);
}

// What is shown of a config whose own layout cannot be: the first that is suggested, else what stands in for it.
Planned InPlaceOfRefused(const PlanOptions& options, const Planned& stand_in, const Proposals& proposals) {
  Planned shown = stand_in;
  if (proposals.found()) {
    PlanOptions of_suggested = options;
    of_suggested.deepspeed_config = std::exchange(of_suggested.suggest, "");
    of_suggested.with.clear();
    of_suggested.fill = WithoutLayout(options.fill);
    shown = PlanRequested(of_suggested);
    shown.refused = stand_in.refused;
  } else {
    PrintNotices(options, shown);
  }
  const Topology& t = shown.plan.topology;
  shown.warnings.insert(
      shown.warnings.begin(),
      fmt::format("the config's own layout cannot be: {}. What is shown is tp {} x pp {} x dp {}, {}", shown.refused,
                  t.tp_size, t.pp_size, t.dp_size, proposals.found() ? "the first suggestion" : "which can be"));
  return shown;
}

int Run(Arguments arguments) {
  const PlanOptions options = ParsePlanFlags(arguments);
  if (options.help) {
    fmt::print("{}", PlanHelp());
    return 0;
  }
  Planned planned = PlanRequested(options);
  std::optional<Verdict> verdict = VerdictOf(planned);
  const bool fits = !verdict || verdict->fits;
  const Proposals proposals = Propose(options, planned, fits || !planned.refused.empty(), arguments);
  if (!planned.refused.empty()) {
    planned = InPlaceOfRefused(options, planned, proposals);
    verdict = VerdictOf(planned);
  }
  if (!options.html.empty()) WritePage(options, planned, verdict ? verdict->device_bytes : 0);
  const int code = (proposals.suggested ? proposals.found() : fits) ? 0 : ExitCode(ErrorCode::kCheckFailed);
  if (options.json) {
    fmt::print("{}", PlanJson(planned, verdict, proposals));
    return code;
  }
  PrintLayout(planned);
  PrintResolved(planned.config, options.resolved);
  if (planned.fill) Line("fill", planned.fill->text);
  PrintMemory(planned.plan);
  PrintTraffic(planned);
  PrintPrediction(planned);
  if (!options.html.empty()) Line("page", options.html);
  for (const std::string& note : planned.warnings) Line("warning", note);
  for (const std::string& text : planned.advice) Line("advice", text);
  if (verdict) PrintVerdict(planned, *verdict);
  PrintProposals(options, planned, proposals);
  return code;
}

}  // namespace

int RunPlan(Arguments arguments) {
  return OrErrorJson(arguments, [&] { return Run(arguments); });
}

}  // namespace trireme::cli
