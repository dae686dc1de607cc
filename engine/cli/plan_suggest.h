// Other layouts than the one that `plan` was asked about: what would fit, and what would be fastest.
//   const Proposals proposals = Propose(options, planned, bytes, fits, arguments);  // --suggest: writes its file
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/advise/changes.h"
#include "engine/advise/suggest.h"
#include "engine/cli/commands.h"
#include "engine/cli/plan_request.h"

namespace trireme::cli {

struct Proposals {
  // Of a layout that does not fit: the two cheapest changes that would, and the commands that check them, for a shell.
  // nullopt: it fits, or no memory is known.
  std::optional<std::vector<Change>> changes;
  std::vector<std::string> check_changes;
  // --suggest: the layouts that fit, the fastest first, why the first is (Reasons), and the command that checks its
  // file.
  std::optional<Advice> suggested;
  std::vector<std::string> reasons;
  std::string check_suggested;
  bool found() const { return suggested && !suggested->best.empty(); }
};

// Writes the file that --suggest names, if a layout fits.
Proposals Propose(const PlanOptions& options, const Planned& planned, bool fits, Arguments arguments);

void PrintProposals(const PlanOptions& options, const Planned& planned, const Proposals& proposals);

}  // namespace trireme::cli
