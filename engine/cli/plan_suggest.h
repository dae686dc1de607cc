// Other layouts than the one that `plan` was asked about: what would fit, and what would be fastest.
#pragma once
#include "engine/cli/commands.h"
#include "engine/cli/plan_request.h"

namespace trireme::cli {

struct PlanAdvice {
  const PlanOptions& options;
  const Planned& planned;
  double memory_bytes = 0;  // of a device; 0: not known
  Arguments arguments;      // of the command, for the commands that check what is proposed
};

// The two cheapest changes of a layout that does not fit, each with the command that checks it.
void PrintChanges(const PlanAdvice& advice);

// --suggest: the layouts that fit, the fastest first, with the reasons; writes the first. False: none fits.
bool PrintSuggestion(const PlanAdvice& advice);

}  // namespace trireme::cli
